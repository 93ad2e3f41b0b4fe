"""Processes that are killed and started again join their group while the others train on. Real processes."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job

SIZE = 3


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
        witness = job.others(victim)[0]
        rest = [rank for rank in job.everybody() if rank != victim]

        def train_on() -> None:
            before = len(witness.facts)
            witness.with_members(rest, before)
            witness.at_step(witness.steps()[-1]["step"] + 50)

        returned = job.restart(victim, after=train_on)
        assert returned.begun()["begun"] == 1
        for process in job.ranks:
            process.with_members(job.everybody(), max(0, len(process.facts) - 1))
        results = job.end()
    check_alike(results)
    assert results[victim]["stats"]["snapshots_applied"] >= 1
    assert [result["stats"]["incarnation"] for result in results] == [int(n == victim) for n in range(SIZE)]
    for rank in rest:
        assert results[rank]["stats"]["discarded_steps"] == 0
        assert [victim, "returned"] in results[rank]["events"]
