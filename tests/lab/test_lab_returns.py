"""`optireduce lab returns`: what a run came to, and one run of each kind on loopback."""

from __future__ import annotations

import socket
from math import inf
from typing import Any

import pytest

from optireduce.cli import main
from optireduce.cli.lab.returns import problems_of, table
from optireduce.trials.places import Loopback
from optireduce.trials.returns.plan import ReturnPlan
from optireduce.trials.returns.run import HOW, Returned, run_return


def step(number: int, begin: float, seconds: float, members: list[int]) -> dict[str, Any]:
    return {"step": number, "begin": begin, "end": begin + seconds, "members": members}


def story(longest: float = 0.3, discarded: int = 3, digest: str = "a") -> Returned:
    """Rank 1 of 2 is gone from second 10 to second 20."""
    everybody = [0, 1]
    before = [step(number, float(number), 0.1, everybody) for number in range(9)]
    others = [step(9, 10.5, longest, [0]), step(10, 21.0, 0.1, everybody)]
    back = [step(9 + number, 20.0 + number, 0.1, []) for number in range(discarded)]
    return Returned(
        victim=1,
        steps={0: before + others, 1: [*before, *back, step(30, 40.0, 0.1, everybody)]},
        finals={0: {"digest": "a", "loss": 2.0}, 1: {"digest": digest, "loss": 2.0, "snapshots": 1}},
        gone=10.0,
        back=20.0,
    )


def test_a_rank_that_came_back_in_time() -> None:
    run = story()
    assert run.usual_seconds() == pytest.approx(0.1)
    assert run.longest_seconds() == pytest.approx(0.3)
    assert run.steps_until_member() == 4
    assert run.equal()
    assert problems_of(run, "stopped") == []
    assert table([run], [run]).row_count == 1


def test_what_must_not_be_is_named() -> None:
    assert "took 0.80 s" in problems_of(story(longest=0.8), "stopped")[0]
    assert "41 of its steps" in problems_of(story(discarded=40), "stopped")[0]
    assert "31 of its steps" in problems_of(story(discarded=30), "killed")[0]
    assert "different bits" in problems_of(story(digest="b"), "stopped")[0]
    never = story()
    never.steps[1].pop()
    assert "None of its steps" in problems_of(never, "stopped")[0]


def test_a_rank_that_ended_early_is_not_equal() -> None:
    run = story()
    del run.finals[1]
    assert not run.equal()
    assert run.loss() < inf


def test_unknown_kinds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "returns", "lost"]) == 2
    assert "'lost' is not one of stopped, killed" in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("how", "victim"), [("stopped", 2), ("killed", 0)])
def test_it_comes_back_with_the_same_bits(how: str, victim: int) -> None:
    plan = ReturnPlan(steps=400, store=f"127.0.0.1:{free_port()}")
    run = run_return(Loopback(3), plan, HOW[how], victim=victim, at_step=10, seconds=3.0)
    assert run.equal(), [final.get("digest") for final in run.finals.values()]
    assert run.steps_until_member() is not None
    assert how == "stopped" or run.finals[victim]["snapshots"] >= 1
