"""The doctor: verdicts on made-up machines, and real probes over loopback."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import optireduce.cli
from optireduce.cli import main
from optireduce.cli.doctor import group, kernel, network, reach, software
from optireduce.cli.doctor.command import judge, judge_group, parse_peer
from optireduce.cli.doctor.finding import Finding, Verdict
from optireduce.cli.doctor.group import group_round_trip, join_everywhere
from optireduce.cli.doctor.reach import Probe, is_probe, open_listener, serve


@pytest.mark.parametrize(
    ("finding", "verdict", "advice"),
    [
        (kernel.segmentation(True), Verdict.OK, ""),
        (kernel.segmentation(False), Verdict.SLOW, "5-6 times slower"),
        (kernel.coalescing(True), Verdict.OK, ""),
        (kernel.coalescing(False), Verdict.SLOW, "3-4 times slower"),
        (kernel.receive_buffer(212_992), Verdict.SLOW, "sysctl -w net.core.rmem_max=4194304"),
        (kernel.receive_buffer(4 << 20), Verdict.OK, ""),
        (kernel.send_buffer(65_536), Verdict.SLOW, "sysctl -w net.core.wmem_max=4194304"),
        (kernel.send_buffer(212_992), Verdict.OK, ""),
        (software.cores(1), Verdict.SLOW, "one core"),
        (software.cores(2), Verdict.OK, ""),
        (software.simd("plain"), Verdict.SLOW, "vector"),
        (software.simd("avx2"), Verdict.OK, ""),
        (software.torch_version("2.5.1"), Verdict.BROKEN, "torch>=2.6"),
        (software.torch_version("2.13.0+cpu"), Verdict.OK, ""),
        (network.interface("eth0", 500, ["10.0.0.1"]), Verdict.BROKEN, "mtu 1500"),
        (network.interface("eth0", 1400, ["10.0.0.1"]), Verdict.SLOW, "mtu 1500"),
        (network.interface("eth0", 1500, ["10.0.0.1"]), Verdict.OK, "jumbo"),
        (network.interface("eth0", 9000, ["10.0.0.1"]), Verdict.OK, ""),
        (judge(Probe(1472, 1500, 5, 0, None), None), Verdict.BROKEN, "firewall"),
        (judge(Probe(1472, 1500, 5, 0, None), 1228), Verdict.BROKEN, "OPTIREDUCE_MTU=1228"),
        (judge(Probe(1472, 1500, 20, 19, 1e-4), 1500), Verdict.SLOW, "1 % up to 75 %"),
        (judge(Probe(1472, 1500, 20, 20, 1e-4), 1500), Verdict.OK, ""),
        (judge_group(1e-4), Verdict.OK, ""),
        (judge_group(None), Verdict.SLOW, "Config.multicast"),
    ],
)
def test_verdicts(finding: Finding, verdict: Verdict, advice: str) -> None:
    assert finding.verdict is verdict
    assert advice in finding.advice
    assert bool(finding.advice) == bool(advice)


def test_doctor_examines_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    for word in (
        "UDP_SEGMENT",
        "UDP_GRO",
        "net.core.rmem_max",
        "interface lo",
        "PyTorch",
        "address of a rank",
        "CPU cores",
    ):
        assert word in out
    assert code == (1 if "broken" in out else 0)


def test_an_unknown_interface_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIREDUCE_SOCKET_IFNAME", "nosuch0")
    assert main(["doctor"]) == 1
    assert "nosuch0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "peer"),
    [("a.b:80", ("a.b", 80)), ("[::1]:9", ("::1", 9)), ("10.0.0.1:65535", ("10.0.0.1", 65_535))],
)
def test_peers(text: str, peer: tuple[str, int]) -> None:
    assert parse_peer(text) == peer


def test_the_listener_ignores_strangers() -> None:
    assert not is_probe(b"")
    assert not is_probe(b"optidoc1P")
    assert not is_probe(b"optidoc1E" + b"\0" * 50)
    with open_listener(0) as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", sock.getsockname()[1]))
        stranger.send(b"x" * 100)
        assert serve(sock, 0.2) == 0


def test_a_peer_that_does_not_listen_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    assert main(["doctor", "--peer", f"127.0.0.1:{port}"]) == 1
    assert "--listen" in capsys.readouterr().out


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener on a busy machine may take longer than a switch does; one that answers costs no wait."""
    monkeypatch.setattr(reach, "_PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(group, "_PROBE_SECONDS", 1.0)


@pytest.mark.usefixtures("patient")
def test_a_listener_outside_the_group_is_told_from_one_inside() -> None:
    for inside in (False, True):
        with open_listener(0) as sock, ThreadPoolExecutor() as pool:
            if inside:
                join_everywhere(sock)
            asked = pool.submit(group_round_trip, "127.0.0.1", sock.getsockname()[1])
            while not asked.done():
                serve(sock, 0.1)
            assert (asked.result() is not None) is inside


def test_a_silent_peer_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_PATIENCE_SECONDS", 0.02)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        assert main(["doctor", "--peer", f"127.0.0.1:{silent.getsockname()[1]}"]) == 1
    assert "firewall" in capsys.readouterr().out


@pytest.mark.usefixtures("patient")
def test_listen_and_peer_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "optireduce.cli", "doctor", "--listen", "--seconds", "300"]
    folder = Path(optireduce.cli.__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as listener:
        try:
            assert listener.stdout is not None
            announced = re.search(r"UDP port (\d+)", listener.stdout.readline())
            assert announced is not None
            assert main(["doctor", "--peer", f"127.0.0.1:{announced[1]}"]) == 0
        finally:
            listener.terminate()
    out = capsys.readouterr().out
    assert re.search(r"multicast.*arrives, round trip", out)
    sizes = re.findall(r"(\d+)-byte packets.*round trip.* 0 of 20 lost", out)
    assert len(sizes) >= 4
    assert int(sizes[-1]) >= 65_535 - 48  # up to the MTU of loopback
