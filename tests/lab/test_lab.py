"""The lab of network namespaces: its links, its loss, its bursts, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import LIMIT_SECONDS, needs_a_lab, until, without_firewall

from optireduce.lab import Lab, LabError

PORT = 5_000  # free: every host is a new namespace

# Counts datagrams; tells when it listens, and on the first line of input how many came.
RECEIVER = """
import socket, sys, threading
channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
channel.bind(("0.0.0.0", int(sys.argv[1])))
print("listening", flush=True)
sys.stdin.readline()
channel.setblocking(False)
count = 0
try:
    while channel.recv(2048):
        count += 1
except BlockingIOError:
    print(count, flush=True)
"""
# Sends datagrams as fast as it may, without waiting: what the link cannot take is not sent.
SENDER = """
import contextlib, socket, sys
channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
channel.setblocking(False)
for _ in range(int(sys.argv[3])):
    with contextlib.suppress(BlockingIOError):
        channel.sendto(bytes(int(sys.argv[4])), (sys.argv[1], int(sys.argv[2])))
"""
TCP_ALGORITHM = """
import socket, sys
channel = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
print(channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""
TCP_SERVER = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listening", flush=True)
server.settimeout(20)
server.accept()
"""
LAB_THAT_WAITS = """
import sys
from optireduce.lab import Lab
with Lab(hosts=1) as lab:
    sleeper = lab.popen(0, ["sleep", "600"])
    print(lab.name, sleeper.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Fast links, for tests that leave the lab as they found it."""
    with Lab(hosts=3, rate="200mbit") as made:
        yield made


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True, timeout=20).stdout


def python(lab: Lab, host: int, script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return str(lab.run(host, command, check=True, capture_output=True, text=True).stdout).strip()


def start(lab: Lab, host: int, script: str) -> subprocess.Popen[Any]:
    """A program that has said that it listens on PORT."""
    command = [sys.executable, "-c", script, str(PORT)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    program = lab.popen(host, command, **pipes)
    assert program.stdout is not None
    assert program.stdout.readline() == "listening\n"
    return program


def delivered(lab: Lab, source: int, target: int, count: int) -> int:
    """How many of so many small datagrams arrive."""
    receiver = start(lab, target, RECEIVER)
    python(
        lab,
        source,
        SENDER.replace("setblocking(False)", "setblocking(True)"),
        lab.addresses[target],
        PORT,
        count,
        64,
    )
    # In the order of their way: what has left one queue is in the next or beyond.
    until(lambda: lab.link(source).up.waiting_bytes == 0)
    until(lambda: lab.link(target).down.waiting_bytes == 0)
    return int(receiver.communicate("now\n", timeout=LIMIT_SECONDS)[0])


@needs_a_lab
def test_a_link_carries_no_more_than_its_rate() -> None:
    packets, payload = 2_000, 1_400
    with Lab(hosts=2, rate="1mbit", host_queue="64k") as slow:
        began = time.monotonic()
        python(slow, 0, SENDER, slow.addresses[1], PORT, packets, payload)
        queue = slow.link(0).up
        allowed = 65_536 + 1e6 / 8 * (time.monotonic() - began)
    assert 0 < queue.sent_bytes <= allowed
    assert allowed < packets * payload, "the machine was too slow for this test to show anything"


@needs_a_lab
def test_hosts_may_send_more_slowly_than_they_receive() -> None:
    with Lab(hosts=1, rate="200mbit", egress_rate="50mbit") as lab:
        shown = lab.run(0, ["tc", "-j", "qdisc", "show", "dev", "eth0"], check=True, capture_output=True)
        assert json.loads(shown.stdout)[0]["options"]["rate"] == 50e6 / 8
        switch = ["ip", "netns", "exec", f"{lab.name}-switch", "tc", "-j", "qdisc", "show", "dev", "port0"]
        shown = subprocess.run(switch, check=True, capture_output=True, timeout=LIMIT_SECONDS)
        assert json.loads(shown.stdout)[0]["options"]["rate"] == 200e6 / 8


@needs_a_lab
def test_the_switch_has_no_firewall_that_packets_pay_for() -> None:
    with Lab(hosts=2, rate="200mbit") as lab:
        closed = ["ip", "netns", "exec", f"{lab.name}-switch", "iptables", "-w", "-P", "FORWARD", "DROP"]
        subprocess.run(closed, check=True, timeout=LIMIT_SECONDS)
        assert delivered(lab, 1, 0, 10) == 10


def test_what_hosts_send_is_not_shaped_alone() -> None:
    with pytest.raises(LabError, match="egress_rate = '50mbit' is not usable: it needs a rate too"):
        Lab(rate=None, egress_rate="50mbit")


@needs_a_lab
def test_a_switch_port_drops_what_does_not_fit_its_queue() -> None:
    with Lab(hosts=1, rate="2mbit", switch_queue="16k") as slow:
        slow.background(on_ms=60_000, off_ms=0, mbit=50)
        until(lambda: slow.link(0).down.dropped_packets > 100)
        assert slow.link(0).down.waiting_bytes <= 16_384
        slow.stop_background()
        assert not slow.background_running


@needs_a_lab
def test_bursts_reach_every_host_and_end_when_stopped(lab: Lab) -> None:
    def arrived() -> list[int]:
        return [lab.link(host).down.sent_bytes for host in range(3)]

    before = arrived()
    lab.background(on_ms=5, off_ms=1, mbit=50, seed=7)
    until(lambda: all(now > then + 10_000 for now, then in zip(arrived(), before, strict=True)))
    lab.stop_background()
    until(lambda: all(lab.link(host).down.waiting_bytes == 0 for host in range(3)))
    after = arrived()
    python(lab, 0, "pass")
    assert sum(arrived()) < sum(after) + 1_000, "a burst is more; hosts may ask for each other's addresses"


@needs_a_lab
def test_random_loss_takes_its_share_and_counts_it(lab: Lab) -> None:
    count = 1_000
    lab.set_loss(0.5, host=1)
    try:
        received = delivered(lab, 0, 1, count)
        assert received + lab.dropped_by_loss(1) == count
        assert 350 < received < 650, "nine standard deviations"
        assert delivered(lab, 0, 2, count) == count, "only host 1 loses"
    finally:
        lab.clear_loss()
    assert delivered(lab, 0, 1, count) == count


@needs_a_lab
def test_only_random_loss_needs_a_firewall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_firewall(tmp_path, monkeypatch)
    with Lab(hosts=2) as made:
        with pytest.raises(LabError, match="random loss needs the program 'iptables'"):
            made.set_loss(0.01)
        made.clear_loss()
        assert made.dropped_by_loss(1) == 0
        assert made.run(1, ["true"]).returncode == 0


@needs_a_lab
def test_a_host_that_is_cut_off_comes_back(lab: Lab) -> None:
    lab.cut(2)
    assert delivered(lab, 0, 2, 20) == 0
    lab.restore(2)
    assert delivered(lab, 0, 2, 20) == 20


@needs_a_lab
def test_hosts_use_the_congestion_control_that_was_asked_for() -> None:
    with Lab(hosts=2, rate=None, congestion_control="reno") as unshaped:
        start(unshaped, 1, TCP_SERVER)
        assert python(unshaped, 0, TCP_ALGORITHM, unshaped.addresses[1], PORT) == "reno"


@needs_a_lab
def test_an_exception_leaves_no_namespace() -> None:
    made = Lab(hosts=2)

    def fail_inside() -> None:
        with made:
            made.background(10, 10, 1)
            assert namespaces().count(made.name) == 4, "two hosts, the neighbour and the switch"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert made.name not in namespaces()


@needs_a_lab
def test_a_lab_that_cannot_be_built_leaves_no_namespace() -> None:
    made = Lab(hosts=2, congestion_control="no-such-algorithm")
    with pytest.raises(LabError, match="no-such-algorithm"):
        made.__enter__()
    assert made.name not in namespaces()


def lab_that_waits() -> tuple[subprocess.Popen[str], str, str]:
    """A process with a lab until its input ends, the lab's name, and a process inside it."""
    program = subprocess.Popen(
        [sys.executable, "-c", LAB_THAT_WAITS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_with_usual_signals,
    )
    assert program.stdout is not None
    name, sleeper = program.stdout.readline().split()
    assert name in namespaces()
    return program, name, sleeper


def _with_usual_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@needs_a_lab
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_namespace_and_no_process(number: signal.Signals) -> None:
    program, name, sleeper = lab_that_waits()
    program.send_signal(number)
    program.communicate(timeout=LIMIT_SECONDS)
    assert program.returncode != 0
    assert name not in namespaces()
    assert not os.path.exists(f"/proc/{sleeper}")


@needs_a_lab
def test_what_a_killed_lab_left_is_removed_by_the_next_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    killed, name, sleeper = lab_that_waits()
    other, other_name, _ = lab_that_waits()
    os.kill(int(sleeper), signal.SIGSTOP)  # as in the middle of `stop`
    killed.kill()
    killed.wait(LIMIT_SECONDS)
    assert name in namespaces()
    with Lab(hosts=1):
        assert name not in namespaces()
        assert other_name in namespaces(), "its process lives"
    until(lambda: not os.path.exists(f"/proc/{sleeper}"))
    assert f"removed what is left of {name}" in caplog.text
    other.communicate(timeout=LIMIT_SECONDS)


@needs_a_lab
def test_a_closed_lab_says_so() -> None:
    with Lab(hosts=1) as made:
        pass
    with pytest.raises(LabError, match="not open"):
        made.run(0, ["true"])


def test_without_root_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(LabError, match="needs root"):
        Lab().__enter__()


def test_missing_programs_are_named_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LabError, match="'ip', the program 'bridge', the program 'tc'"):
        Lab().__enter__()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hosts", 0),
        ("rate", "fast"),
        ("rate", "0mbit"),
        ("egress_rate", "slow"),
        ("switch_queue", "-1"),
        ("burst", "some"),
    ],
)
def test_settings_that_cannot_work_are_named(field: str, value: Any) -> None:
    with pytest.raises(LabError, match=f"{field} = {value!r} is not usable"):
        Lab(**{field: value})
