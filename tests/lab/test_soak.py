"""What a soak calls wrong, growing, or stuck."""

from __future__ import annotations

import numpy as np
import pytest

from optireduce.trials.soak.faults import ROTATION, rotation
from optireduce.trials.soak.outcome import Chapter, Checks, RankStory
from optireduce.trials.soak.plan import SoakPlan
from optireduce.trials.soak.values import Ledger, contribution

RANKS, ELEMENTS, STEPS = 4, 700, 20
EVERYBODY = tuple(range(RANKS))
MIB = 1 << 20


def ledger_of(included: dict[int, int], view: int = 1, members: tuple[int, ...] = EVERYBODY) -> Ledger:
    """All steps; in some of them only so many of four contributions are included."""
    ledger = Ledger(ELEMENTS, RANKS)
    for step in range(STEPS):
        ledger.expect(step)
        ledger.note_view(view if step > STEPS // 2 else 1, members if step > STEPS // 2 else EVERYBODY)
        ledger.add(contribution(ELEMENTS, step) * np.float32(included.get(step, RANKS) / RANKS))
    return ledger


def test_a_contribution_that_comes_a_step_late_is_no_deviation() -> None:
    ledger = ledger_of({3: 3})
    ledger.add(contribution(ELEMENTS, 3) / np.float32(RANKS))  # as residual, or by the flush at the end
    assert ledger.deviation() == 0.0
    assert ledger.allowed == 0.0


@pytest.mark.parametrize("included", [{3: 3}, {3: 5}], ids=["lost", "counted twice"])
def test_a_contribution_that_does_not_count_once_is_one(included: dict[int, int]) -> None:
    ledger = ledger_of(included)
    assert 0.2 < ledger.deviation() < 2.0  # some one contribution, smaller and larger values
    assert ledger.deviation() > ledger.allowed


def test_values_at_the_wrong_place_are_a_deviation() -> None:
    ledger = ledger_of({})
    moved = np.roll(contribution(ELEMENTS, 0), 352) - contribution(ELEMENTS, 0)  # by a packet
    ledger.add(moved)
    assert ledger.deviation() > 0.2


def test_steps_out_of_the_view_are_excepted_and_counted() -> None:
    ledger = ledger_of({STEPS // 2: 3}, view=2, members=(0, 1, 2))
    assert (ledger.view_changes, ledger.out_of_view) == (1, STEPS - STEPS // 2 - 1)
    assert 0 < ledger.deviation() < ledger.allowed


def test_a_sum_may_be_that_of_parameters() -> None:
    ledger = Ledger(ELEMENTS, RANKS)
    ledger.expect(0)
    assert ledger.deviation(contribution(ELEMENTS, 0)) == 0.0
    assert ledger.deviation(np.zeros(ELEMENTS, np.float32)) > 1.0


def test_results_are_compared_by_step() -> None:
    checks = Checks()
    for rank in range(3):
        for step in range(5):
            checks.add(rank, step, 100 + step)
    assert checks.compared == 10
    assert list(checks.problems()) == []
    checks.add(3, 2, 7)
    checks.add(3, 4, 7)
    assert list(checks.problems()) == [
        "2 results differ between ranks; the first: step 2, ranks 0 and 3",
    ]


def story(rank: int, **values: float | str) -> RankStory:
    good = {
        "operations": 20,
        "operations_at_loss": 10,
        "resident_early": 100 * MIB,
        "resident_late": 100 * MIB,
        "deviation": 0.0,
    }
    return RankStory(rank, 2 * MIB, **{**good, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"deviation": 0.5}, "rank 0: a value is off by 0.50 contributions; 0 changes of view explain 0.00"),
        ({"deviation": float("nan")}, "rank 0: a value is off by nan contributions"),
        ({"deviation": None}, "rank 0: what it has summed up was not told"),
        ({"resident_late": 105 * MIB}, "rank 0: memory grew by 5.0%"),
        ({"operations": 10}, "rank 0 did not go on without rank 1"),
        ({"ended": "OperationTimeout: late"}, "rank 0 ended early: OperationTimeout: late"),
    ],
)
def test_problems_are_named(changed: dict[str, float | str], words: str) -> None:
    assert Chapter("kill", 1, [story(0), story(1)]).problems() == []
    (problem,) = Chapter("kill", 1, [story(0, **changed), story(1)]).problems()
    assert problem.startswith(words)


def test_a_deviation_that_views_explain_is_none() -> None:
    explained = story(0, deviation=3.0, allowed=5.0, view_changes=1)
    assert Chapter("kill", 1, [explained, story(1)]).problems() == []


def test_the_lost_rank_may_end_as_it_likes() -> None:
    lost = story(1, operations=10, ended="TooFewRanksError", deviation=None)  # type: ignore[arg-type]
    assert Chapter("cut", 1, [story(0), lost]).problems() == []


def test_growing_memory_may_be_ignored() -> None:
    def grown(plan: SoakPlan) -> Chapter:
        sizes = {"resident_early": 100 * MIB, "resident_late": 300 * MIB}
        return Chapter("kill", 0, [RankStory(0, plan.noise_bytes, **sizes)])

    assert grown(SoakPlan(4, 60)).problems() == ["rank 0: memory grew by 200.0%"]
    assert grown(SoakPlan(4, 60, any_memory=True)).problems() == []


def test_without_a_firewall_there_are_no_phases_of_loss() -> None:
    assert rotation(firewall=True) == ROTATION
    assert [fault.name for fault in rotation(firewall=False)] == ["quiet", "bursts", "pauses", "stop"]


def test_a_soak_has_chapters_and_memory_has_time_to_settle() -> None:
    short, long = SoakPlan(4, 60), SoakPlan(4, 3600)
    assert (short.chapters, short.chapter_seconds) == (2, 30)
    assert (long.chapters, long.chapter_seconds) == (12, 300)
    assert short.rounds(6) == 2
    assert long.rounds(6) == 8
    assert long.noise_bytes < short.noise_bytes
