"""Ranks of one group that are killed and started again, and what is called wrong about it."""

from __future__ import annotations

import socket

import pytest

from optireduce.trials.places import Loopback
from optireduce.trials.restarts.outcome import Outcome, Return
from optireduce.trials.restarts.plan import WITNESS, RestartPlan
from optireduce.trials.restarts.run import run_restarts

pytest.importorskip("torch")
MIB = 1 << 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_all_ranks_but_one_take_turns() -> None:
    assert RestartPlan(4, 300.0).victims == [3, 2, 0, 3, 2]
    assert RestartPlan(3, 10.0).victims == [2]
    assert WITNESS not in RestartPlan(5, 3_600.0).victims


def good() -> Outcome:
    found = Outcome(usual=[0.05] * 9, resident=[100 * MIB] * 20)
    found.returns = [Return(2, 0.0, 5.0, 9.0, 10.0, own_steps=3, longest=0.4)]
    for rank in range(2):
        found.checks.add(rank, 7, 11)
    return found


def test_a_good_run_has_no_problems() -> None:
    assert good().problems() == []


def test_every_problem_is_told() -> None:
    found = good()
    found.returns.append(Return(0, 60.0, longest=0.6))
    found.returns.append(Return(2, 60.0, 65.0, 66.0, 67.0, own_steps=31))
    found.resident = [100 * MIB] * 10 + [200 * MIB] * 10
    found.checks.add(2, 7, 12)
    found.failure = "rank 1 hangs"
    assert found.problems() == [
        "rank 1 hangs",
        "1 results differ between ranks; the first: step 7, ranks 0 and 2",
        "kill 2 (rank 0): it did not become a member again",
        "kill 2 (rank 0): a step of the others took 0.60 s",
        "kill 3 (rank 2): it took 31 steps until it was a member",
        "the memory of the rank that was never killed grew by 100.0 MiB",
    ]
    assert "nothing was compared" in Outcome().problems()


def test_killed_ranks_return_to_the_same_group() -> None:
    plan = RestartPlan(3, 40.0, every_seconds=20.0, away_seconds=2.0, step_seconds=0.02)
    found = run_restarts(Loopback(3), plan, free_port())
    assert found.failure is None
    assert [(each.victim, each.incarnation) for each in found.returns] == [(2, 1), (0, 1)]
    assert all(each.whole_at is not None and each.another_step > 20 for each in found.returns)
    assert list(found.checks.problems()) == []
    assert found.checks.compared > 100
