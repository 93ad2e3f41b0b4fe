"""What a soak calls wrong, growing, or stuck."""

from __future__ import annotations

import numpy as np
import pytest

from optireduce.report import Report
from optireduce.trials.soak.outcome import Chapter, RankStory
from optireduce.trials.soak.plan import SoakPlan
from optireduce.trials.soak.values import NOBODY, Floats, contribution, contributors, whose, wrong_values

RANKS, ELEMENTS, OPERATION = 4, 700, 3
MIB = 1 << 20


def mean_of(ranks: tuple[int, ...], operation: int = OPERATION) -> Floats:
    total = sum(contribution(rank, ELEMENTS, operation).astype(np.float64) for rank in ranks)
    return (total / max(len(ranks), RANKS / 2)).astype(np.float32)


def report(**values: int) -> Report:
    return Report(operation=OPERATION, bytes=ELEMENTS * 4, elapsed_seconds=0.1, **values)


def test_a_mean_tells_who_is_in_it() -> None:
    assert (contributors(mean_of((0, 2, 3)), RANKS, OPERATION) == 0b1101).all()
    assert (contributors(mean_of((1,)), RANKS, OPERATION) == 0b0010).all()
    assert (contributors(mean_of((0, 1)) * np.float32(1.01), RANKS, OPERATION) == NOBODY).all()


def test_the_mean_of_all_is_right() -> None:
    assert wrong_values(mean_of((0, 1, 2, 3)), RANKS, report()) == 0


def test_a_loss_that_the_report_owns_up_to_is_right() -> None:
    values = mean_of((0, 1, 2, 3))
    values[:10] = 0
    assert wrong_values(values, RANKS, report(reduced_lost_bytes=40)) == 0
    assert wrong_values(mean_of((0, 1)), RANKS, report(contributions_lost_bytes=ELEMENTS * 2)) == 0


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(mean_of((0, 1, 2)), id="a rank is missing and nothing is said to be lost"),
        pytest.param(mean_of((0, 1, 2, 3), OPERATION - 1), id="the operation before"),
        pytest.param(np.zeros(ELEMENTS, np.float32), id="lost without a word"),
    ],
)
def test_what_the_report_does_not_explain_is_wrong(spoiled: Floats) -> None:
    assert wrong_values(spoiled, RANKS, report()) > 0


def test_a_value_from_nowhere_is_wrong_whatever_was_lost() -> None:
    values = mean_of((0, 1, 2, 3))
    values[5] += np.float32(0.3)
    lost = report(contributions_lost_bytes=ELEMENTS, reduced_lost_bytes=ELEMENTS)
    assert wrong_values(values, RANKS, lost) == 1


def test_what_is_wrong_is_told_with_the_ranks_of_every_value() -> None:
    values = mean_of((0, 1, 3))
    values[:10], values[10:15] = 0, -1
    told = whose(values, RANKS, report())
    assert told.startswith(f"5 of nobody, 10 of zero, {ELEMENTS - 15} of 0+1+3; Report(operation={OPERATION}")


def story(rank: int, **values: float | str) -> RankStory:
    good = {
        "operations": 20,
        "operations_at_loss": 10,
        "resident_early": 100 * MIB,
        "resident_late": 100 * MIB,
    }
    return RankStory(rank, 2 * MIB, **{**good, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"wrong": 1, "first_wrong": "7 of 0+1"}, "rank 0: 1 wrong values; first: 7 of 0+1"),
        ({"resident_late": 105 * MIB}, "rank 0: memory grew by 5.0%"),
        ({"operations": 10}, "rank 0 did not go on without rank 1"),
        ({"drift": 0.2}, "rank 0: its replica is 20.0% away from the others"),
        ({"drift": float("nan")}, "rank 0: its replica is nan% away from the others"),
        ({"ended": "OperationTimeout: late"}, "rank 0 ended early: OperationTimeout: late"),
    ],
)
def test_problems_are_named(changed: dict[str, float | str], words: str) -> None:
    assert Chapter("kill", 1, [story(0), story(1)]).problems() == []
    assert Chapter("kill", 1, [story(0, **changed), story(1)]).problems() == [words]


def test_the_lost_rank_may_end_as_it_likes() -> None:
    assert Chapter("cut", 1, [story(0), story(1, operations=10, ended="TooFewRanksError")]).problems() == []


def test_memory_may_be_left_out_of_the_verdict() -> None:
    def grown(plan: SoakPlan) -> Chapter:
        sizes = {"resident_early": 100 * MIB, "resident_late": 300 * MIB}
        return Chapter("kill", 0, [RankStory(0, plan.noise_bytes, **sizes)])

    assert grown(SoakPlan(4, 60)).problems() == ["rank 0: memory grew by 200.0%"]
    assert grown(SoakPlan(4, 60, any_memory=True)).problems() == []


def test_a_soak_has_chapters_and_memory_has_time_to_settle() -> None:
    short, long = SoakPlan(4, 60), SoakPlan(4, 3600)
    assert (short.chapters, short.chapter_seconds) == (2, 30)
    assert (long.chapters, long.chapter_seconds) == (12, 300)
    assert short.rounds(6) == 2
    assert long.rounds(6) == 8
    assert long.noise_bytes < short.noise_bytes
