"""Processes that are killed and started again join their group while the others train on. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job
from ranks import LIMIT_SECONDS, free_port

from optireduce.rendezvous import TcpStore

SIZE = 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_elastic.py"


def check_alike(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert (result["step"], result["bits"]) == (results[0]["step"], results[0]["bits"])


@pytest.mark.parametrize("victim", [1, 0])
def test_a_restarted_process_becomes_a_member_with_the_same_bits(victim: int) -> None:
    """Also rank 0, whose store ends with it."""
    with Job(SIZE) as job:
        starts = [process.begun() for process in job.ranks]
        assert len({start["start"] for start in starts}) == 1  # each rank made other parameters
        for process in job.ranks:
            process.at_step(20)
        returned = job.restart(victim, after=lambda: job.trained_on(victim))
        assert returned.begun()["begun"] == 1
        job.whole()
        results = job.end()
    check_alike(results)
    assert results[victim]["stats"]["snapshots_applied"] >= 1
    assert [result["stats"]["incarnation"] for result in results] == [int(n == victim) for n in range(SIZE)]
    for rank in set(job.everybody()) - {victim}:
        assert results[rank]["stats"]["discarded_steps"] == 0
        assert [victim, "returned"] in results[rank]["events"]
    assert len(returned.steps()) < results[0]["step"] - 50  # it did not replay what it missed


def test_a_rank_may_be_killed_again_and_another_one_too() -> None:
    """Each time at once: the new process is there before the others have found the old one silent."""
    with Job(SIZE) as job:
        for victim, incarnation in ((2, 1), (2, 2), (1, 1), (2, 3)):
            spare = job.start(victim, hold=True)
            spare.wait_for(lambda fact: "ready" in fact, "is not ready")
            for rank in set(job.everybody()) - {victim}:
                job.ranks[rank].advanced(10)
            job.replaced(victim, spare)
            assert spare.begun()["begun"] == incarnation
            job.whole()
        results = job.end()
    check_alike(results)
    assert [result["stats"]["incarnation"] for result in results] == [0, 1, 3]


def test_a_rank_that_left_is_started_again() -> None:
    """As a scheduler does that takes a machine away for a while."""
    with Job(SIZE) as job:
        for process in job.ranks:
            process.at_step(20)
        job.ranks[2].order(leave=True)
        job.ranks[2].wait_for(lambda fact: "left" in fact, "did not leave")
        job.trained_on(2)
        returned = job.restart(2)
        assert returned.begun()["begun"] == 1
        job.whole()
        results = job.end()
    check_alike(results)
    for rank in (0, 1):
        assert [2, "left"] in results[rank]["events"]
        assert [2, "returned"] in results[rank]["events"]


def test_a_static_graph_whose_buckets_are_cut_a_step_later() -> None:
    with Job(2, static_graph=True, config={"min_ranks": 1}) as job:
        for process in job.ranks:
            process.at_step(20)
        job.restart(1, after=lambda: job.trained_on(1))
        job.whole()
        results = job.end()
    check_alike(results)
    assert results[1]["stats"]["discarded_steps"] >= 2


def test_a_group_trains_on_without_its_store_which_comes_back_empty() -> None:
    port = free_port()
    store = TcpStore("127.0.0.1", port, serve=True)
    with Job(SIZE, port=port, serves=False) as job:
        for process in job.ranks:
            process.at_step(20)
        store.close()
        for process in job.ranks:
            process.advanced(100)
        store = TcpStore("127.0.0.1", port, serve=True)
        job.restart(2)
        job.whole()
        results = job.end()
    store.close()
    check_alike(results)


def test_the_example_survives_the_loss_of_a_rank() -> None:
    address = f"127.0.0.1:{free_port()}"

    def start(rank: int) -> subprocess.Popen[str]:
        environment = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "OPTIREDUCE_STORE": address}
        return subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLE), "--pause", "0.02", "--epochs", "45", "--tell"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment | {"OPTIREDUCE_SOCKET_IFNAME": "lo"},
        )

    ranks = [start(rank) for rank in range(SIZE)]
    try:
        assert ranks[1].stdout is not None
        while "epoch 1" not in ranks[1].stdout.readline():
            assert ranks[1].poll() is None
        ranks[1].send_signal(signal.SIGKILL)
        ranks[1].wait(LIMIT_SECONDS)
        ranks[1] = start(1)
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    last = [output.splitlines()[-1].split(": ", 1)[1] for output in outputs]
    assert last == [last[0]] * SIZE
    assert "restarted 1 time(s)" in outputs[1]
    assert "epoch 0" not in outputs[1].split("restarted")[1]
