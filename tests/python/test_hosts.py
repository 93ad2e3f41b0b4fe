"""Two hosts with a network between them, as Linux network namespaces: packets of ordinary size over a real
link layer, and a firewall that lets TCP through but not UDP."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("ip", "iptables")
MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]

ADDRESSES = ("10.213.77.1", "10.213.77.2")
LIMIT_SECONDS = 300

RANK = """
import sys
import numpy as np
import optireduce

rank, store, timeout = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
config = optireduce.Config(connect_timeout_seconds=timeout)
try:
    with optireduce.Communicator(rank, 2, store=store, config=config) as group:
        array = np.arange(300_001, dtype=np.float32) * (rank + 1)
        group.all_reduce(array, op="sum")
        exact = bool((array == np.arange(300_001, dtype=np.float32) * 3).all())
        print("exact" if exact else "wrong", group.stats()["packets_sent"] > 400)
except optireduce.ConnectError as error:
    print("ConnectError", error)
"""


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_SECONDS)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a cable; names of their own, so that runs side by side do not meet."""
    names = (f"optireduce-{os.getpid()}-a", f"optireduce-{os.getpid()}-b")
    try:
        for name in names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        cable = ("type", "veth", "peer", "name", "eth0", "netns", names[1])
        sh("ip", "link", "add", "eth0", "netns", names[0], *cable)
        for name, address in zip(names, ADDRESSES, strict=True):
            sh("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=LIMIT_SECONDS)


def run_ranks(hosts: tuple[str, str], directory: Path, connect_timeout: float) -> list[str]:
    """What each rank prints; rank 0 serves the rendezvous on a port that is free in its new namespace."""
    script = directory / "rank.py"
    script.write_text(RANK)
    arguments = (f"{ADDRESSES[0]}:29500", str(connect_timeout))
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, script, str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        return [rank.communicate(timeout=LIMIT_SECONDS)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_ranks_on_two_hosts_reduce_exactly_in_packets_of_the_path(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    assert run_ranks(hosts, tmp_path, 20.0) == ["exact True", "exact True"]


def test_a_firewall_that_drops_udp_is_named_on_both_ranks(hosts: tuple[str, str], tmp_path: Path) -> None:
    sh("ip", "netns", "exec", hosts[1], "iptables", "-A", "INPUT", "-p", "udp", "-j", "DROP")
    for said in run_ranks(hosts, tmp_path, 1.0):
        assert said.startswith("ConnectError UDP does not get through between rank "), said
        assert "firewall" in said
        for address in ADDRESSES:
            assert f"{address}:" in said
