"""From steps to figures: when a target was reached, and what counts."""

from __future__ import annotations

import pytest

from optireduce.trials.training.outcome import HeldOut, Outcome, Step, seconds_to


def held(*points: tuple[float, float]) -> list[HeldOut]:
    return [HeldOut(index, clock, loss) for index, (clock, loss) in enumerate(points)]


def test_the_target_is_reached_between_two_evaluations() -> None:
    assert seconds_to(held((10, 3.0), (20, 2.0)), 2.5) == pytest.approx(15)
    assert seconds_to(held((10, 3.0), (20, 2.0)), 2.0) == pytest.approx(20)


def test_the_first_time_counts() -> None:
    assert seconds_to(held((10, 3.0), (20, 2.0), (30, 2.6), (40, 1.0)), 2.0) == pytest.approx(20)


def test_a_target_that_is_never_reached_has_no_time() -> None:
    assert seconds_to(held((10, 3.0), (20, 2.9)), 2.5) is None
    assert seconds_to([], 2.5) is None


def test_a_target_reached_at_once_has_the_first_time() -> None:
    assert seconds_to(held((10, 2.0)), 2.5) == 10


def steps(*seconds: float) -> list[Step]:
    return [Step(i, 0.0, value, value / 4, 0.0, 1.0, 0.01, i == 0) for i, value in enumerate(seconds)]


def test_the_first_steps_do_not_count() -> None:
    outcome = Outcome("x", 1, steps(100, 100, 100, 1, 2, 3))
    assert (outcome.p50(), outcome.p99(), outcome.mean_step(), outcome.waiting_share()) == (2, 3, 2, 0.25)
    assert (outcome.missing_mean(), outcome.timeouts()) == (pytest.approx(0.01), 1)


def test_a_run_of_first_steps_only_counts_them() -> None:
    assert Outcome("x", 1, steps(5, 7)).mean_step() == 6
