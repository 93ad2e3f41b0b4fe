"""Multicast between hosts in namespaces: what a host's interface really sends, loss, and networks that do not
let it through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from labs import needs_a_lab

from optireduce.cli import main
from optireduce.cli.lab import settings
from optireduce.cli.lab.settings import chosen_systems, default_systems
from optireduce.lab import Lab

LIMIT_SECONDS = 300
ELEMENTS = 500_000

RANK = """
import json, logging, subprocess, sys
from pathlib import Path
import numpy as np
import optireduce
from optireduce import multicast

rank, ranks, store, settings, stray, deaf = (json.loads(text) for text in sys.argv[1:])
if rank == stray:
    true = multicast.group_address
    multicast.group_address = lambda seed, address: true(seed + 1, address)

def sent():
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())

logging.basicConfig(stream=sys.stderr)
config = optireduce.Config(interface="eth0", timeout_seconds=60.0, **settings)
try:
    group = optireduce.Communicator(rank, ranks, store=store, config=config)
except optireduce.ConnectError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
if rank == deaf:  # from now on
    rule = ["-A", "INPUT", "-d", "239.0.0.0/8", "-j", "DROP"]
    subprocess.run(["iptables", *rule], check=True, timeout=20)
with group:
    exact = True
    expected = np.arange(ELEMENTS, dtype=np.float32) * (ranks * (ranks + 1) / 2)
    nothing = np.zeros(1, dtype=np.float32)
    for turn in range(4 if deaf is None else 200):
        group.all_reduce(nothing)  # everybody is through with the last one
        before, resent_before = sent(), group.stats()["resent_bytes"]
        array = np.arange(ELEMENTS, dtype=np.float32) * (rank + 1)
        group.all_reduce(array, op="sum")
        exact = exact and np.allclose(array, expected, rtol=1e-6)
        # How soon a rank is sure that another hears nothing depends on how busy the machine is.
        if deaf is not None:
            fallbacks = np.array([group.stats()["multicast_fallbacks"]], dtype=np.float32)
            group.all_reduce(fallbacks, op="sum")
            if fallbacks[0] == ranks - 1:
                break
    group.all_reduce(nothing)  # everybody has what this rank sends
    stats = group.stats()
    resent = stats["resent_bytes"] - resent_before
    print(json.dumps({"exact": exact, "sent": sent() - before, "resent": resent, "stats": stats}))
"""


def reduce_on(
    lab: Lab,
    directory: Path,
    config: dict[str, Any],
    stray: int | None = None,
    deaf: int | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the ranks found, and what they logged."""
    script = directory / "rank.py"
    script.write_text(RANK.replace("ELEMENTS", str(ELEMENTS)))
    ranks = len(lab.addresses)
    rest = [ranks, f"{lab.addresses[0]}:29500", config, stray, deaf]
    processes = [
        lab.popen(
            rank,
            [sys.executable, str(script), *(json.dumps(value) for value in [rank, *rest])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(out for out, _ in said), said
    return [json.loads(out) for out, _ in said], [line for _, text in said for line in text.splitlines()]


@needs_a_lab
def test_a_rank_of_eight_sends_its_bucket_once(tmp_path: Path) -> None:
    with Lab(hosts=8, rate=None) as lab:
        found, _ = reduce_on(lab, tmp_path, {"multicast": "auto"})
        assert all(rank["exact"] and rank["stats"]["multicast"] for rank in found)
        # What a busy machine makes ranks ask for again says nothing about how often they send.
        shares = [(rank["sent"] - rank["resent"]) / (4 * ELEMENTS) for rank in found]
        # The packets' headers are 7 %; a rank may begin to count a little late.
        assert max(shares) < 1.1, shares
        assert sum(shares) / 8 > 0.9, shares
        payload = [rank["stats"]["payload_bytes_sent"] - rank["stats"]["resent_bytes"] for rank in found]
        assert max(payload) < 1.05 * 4 * (4 * ELEMENTS), payload


@needs_a_lab
def test_loss_is_repaired_from_where_it_happened(tmp_path: Path) -> None:
    with Lab(hosts=4, rate=None, offload=False) as lab:
        lab.set_loss(0.01)
        found, _ = reduce_on(lab, tmp_path, {"multicast": "on"})
        assert all(rank["exact"] and rank["stats"]["multicast"] for rank in found)
        assert sum(rank["stats"]["repaired_bytes"] for rank in found) > 0


def drop_multicast(lab: Lab, host: int) -> None:
    rule = ("-A", "INPUT", "-d", "239.0.0.0/8", "-j", "DROP")
    lab.run(host, ["iptables", *rule], check=True)


@needs_a_lab
def test_a_host_that_drops_multicast_is_named_once_and_all_go_on_without(tmp_path: Path) -> None:
    with Lab(hosts=3, rate=None) as lab:
        drop_multicast(lab, 2)
        found, log = reduce_on(lab, tmp_path, {"multicast": "auto"})
        assert all(rank["exact"] and not rank["stats"]["multicast"] for rank in found)
        assert all(rank["stats"]["multicast_bytes_sent"] == 0 for rank in found)
        lines = [line for line in log if "multicast" in line]
        assert len(lines) == 1, log
        assert "rank 2 does not hear ranks 0, 1: " in lines[0]


@needs_a_lab
def test_where_multicast_is_required_every_rank_says_who_hears_whom(tmp_path: Path) -> None:
    with Lab(hosts=3, rate=None) as lab:
        drop_multicast(lab, 1)
        found, _ = reduce_on(lab, tmp_path, {"multicast": "on"})
        for rank in found:
            assert "multicast does not get through: rank 1 does not hear ranks 0, 2" in rank["error"]


@needs_a_lab
def test_a_rank_in_the_wrong_group_is_no_reason_to_hang(tmp_path: Path) -> None:
    with Lab(hosts=3, rate=None) as lab:
        found, log = reduce_on(lab, tmp_path, {"multicast": "auto"}, stray=0)
        assert all(rank["exact"] and not rank["stats"]["multicast"] for rank in found)
        assert any("rank 0 does not hear ranks 1, 2" in line for line in log)


@needs_a_lab
def test_a_rank_that_hears_the_group_no_more_is_served_singly_in_the_end(tmp_path: Path) -> None:
    with Lab(hosts=3, rate=None) as lab:
        found, log = reduce_on(lab, tmp_path, {"multicast": "auto"}, deaf=2)
        assert all(rank["exact"] for rank in found)
        assert [rank["stats"]["multicast_fallbacks"] for rank in found] == [1, 1, 0]
        assert [rank["stats"]["multicast"] for rank in found] == [False, False, True]
        lines = [line for line in log if "multicast hardly reaches rank 2 any more" in line]
        assert len(lines) == 2, log  # of each that multicast to it


@needs_a_lab
def test_the_bench_compares_it_with_unicast(tmp_path: Path) -> None:
    options = ["--hosts", "3", "--egress", "100mbit", "--bytes", "256K", "--iterations", "2", "--warmup", "3"]
    found = tmp_path / "found.json"
    systems = ["--systems", "optireduce,multicast"]
    assert main(["lab", "bench", "quiet", *systems, *options, "--json", str(found)]) == 0
    result = json.loads(found.read_text())
    sent = {row["system"]: row["sent_bytes"] for row in result["figures"]}
    assert sent["multicast"] < sent["optireduce"]
    assert all(rank["multicast_bytes_sent"] > 0 for rank in result["counters"]["multicast"])


def test_the_bench_s_settings_are_for_both_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "mpi_is_installed", lambda: False)
    ours, multicast, papers = chosen_systems("optireduce,multicast,papers", {"wire": "bf16"})
    assert ours.settings == {"wire": "bf16"}
    assert multicast.settings == {"wire": "bf16", "multicast": "on"}
    assert "wire" not in papers.settings
    assert "multicast" not in default_systems().split(",")
