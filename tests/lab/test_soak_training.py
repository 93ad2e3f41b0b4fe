"""Chapters of a soak that train: what they call wrong, and one under faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labs import needs_a_lab

from optireduce.lab import Lab
from optireduce.report import StepReport
from optireduce.trials.soak.faults import ENDINGS, ending
from optireduce.trials.soak.loop import resident_bytes
from optireduce.trials.soak.plan import ALL_REDUCES, TRAINING, SoakPlan
from optireduce.trials.soak.run import run_chapter
from optireduce.trials.soak.train_rank import Exercise, parameter_sizes
from optireduce.trials.soak.values import Floats, as_bfloat16, contribution, wrong_gradients

RANKS, ELEMENTS, STEP, VALUE_BYTES = 4, 700, 3, 2
ALL = tuple(range(RANKS))


def gradient_of(ranks: tuple[int, ...], step: int = STEP) -> Floats:
    total = sum(contribution(rank, ELEMENTS, step).astype(np.float64) for rank in ranks)
    mean = torch.from_numpy(total / max(len(ranks), RANKS / 2))
    return mean.to(torch.float32).to(torch.bfloat16).to(torch.float32).numpy()


def report(**values: int | tuple[int, ...]) -> StepReport:
    return StepReport(STEP, buckets=2, bytes=ELEMENTS * VALUE_BYTES, elapsed_seconds=0.1, **values)  # type: ignore[arg-type]


def test_rounding_is_that_of_torch() -> None:
    values = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    values[:3] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8  # halfway between two
    assert (
        as_bfloat16(values) == torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    ).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8])
def test_the_mean_of_all_is_right_to_the_last_bit(ranks: int) -> None:
    total = sum(contribution(rank, ELEMENTS, STEP) for rank in range(ranks))
    mean = torch.from_numpy(np.asarray(total / np.float32(ranks)))
    values = mean.to(torch.bfloat16).to(torch.float32).numpy()
    assert wrong_gradients(values, 0, ranks, report()) == 0
    values[7] *= 1 + np.float32(2.0**-20)
    assert wrong_gradients(values, 0, ranks, report()) == 1


def test_a_loss_that_the_report_owns_up_to_is_right() -> None:
    values = gradient_of(ALL)
    values[:10] = 0
    assert wrong_gradients(values, 0, RANKS, report(reduced_lost_bytes=10 * VALUE_BYTES)) == 0
    assert wrong_gradients(values, 0, RANKS, report(reduced_lost_bytes=9 * VALUE_BYTES)) == 1
    for some in ((0, 1, 2), (1, 2, 3), (0, 3), (2,)):
        assert wrong_gradients(gradient_of(some), 0, RANKS, report(contributions_lost_bytes=2)) == 0
        assert wrong_gradients(gradient_of(some), 0, RANKS, report(absent=(3,))) == 0


@pytest.mark.parametrize("ranks", [3, 5, 8])  # for 4 the share is what a mean of this rank alone would be
def test_a_share_of_the_own_gradient_stands_in_for_what_is_lost(ranks: int) -> None:
    mean = sum(contribution(rank, ELEMENTS, STEP) for rank in range(ranks)) / np.float32(ranks)
    values = as_bfloat16(np.asarray(mean))
    values[:10] = contribution(2, 10, STEP) / np.float32(np.sqrt(ranks))
    for rank, lost, wrong in ((2, 10, 0), (2, 9, 1), (1, 10, 10)):
        assert wrong_gradients(values, rank, ranks, report(reduced_lost_bytes=lost * VALUE_BYTES)) == wrong


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(gradient_of((0, 1, 2)), id="a rank is missing and nothing is said to be lost"),
        pytest.param(gradient_of(ALL, STEP - 1), id="the step before"),
        pytest.param(np.zeros(ELEMENTS, np.float32), id="lost without a word"),
    ],
)
def test_what_the_report_does_not_explain_is_wrong(spoiled: Floats) -> None:
    assert wrong_gradients(spoiled, 0, RANKS, report()) == ELEMENTS


@pytest.mark.parametrize("lost", [0, 20])
def test_what_came_late_may_be_in_as_many_values_as_the_report_says(lost: int) -> None:
    values = gradient_of(ALL)
    values[100:140] += gradient_of(ALL, STEP - 1)[100:140]

    def wrong(late: int) -> int:
        said = {"contributions_lost_bytes": lost, "corrected_bytes": late * VALUE_BYTES}
        return wrong_gradients(values, 0, RANKS, report(**said))

    assert wrong(late=0) > 0
    assert wrong(late=40) == 0


def test_what_came_late_may_make_a_value_zero() -> None:
    """A mean of rank 0 alone, less what rank 2 had lent itself, is negative: with places shifted by three
    steps it is the opposite of this step's mean in one of seven."""
    values = gradient_of(ALL)
    late = gradient_of((0,), STEP + 3) - contribution(2, ELEMENTS, STEP + 3) / 2
    values[:700] += late[:700]
    assert np.count_nonzero(values == 0) == 100
    assert wrong_gradients(values, 2, RANKS, report(corrected_bytes=700 * VALUE_BYTES)) == 0
    assert wrong_gradients(values, 2, RANKS, report(corrected_bytes=690 * VALUE_BYTES)) == 10


def test_a_value_from_nowhere_is_wrong_whatever_was_lost() -> None:
    values = gradient_of(ALL)
    values[5] *= np.float32(1.01)
    assert wrong_gradients(values, 0, RANKS, report(contributions_lost_bytes=50, reduced_lost_bytes=50)) == 1


def test_the_gradients_of_the_exercise_are_what_was_given() -> None:
    sizes = parameter_sizes(60_000)
    assert len(sizes) == 3
    given = torch.from_numpy(contribution(3, sum(sizes), STEP))
    exercise = Exercise(sizes)
    exercise(torch.split(given, sizes)).backward()
    assert given.numel() == 60_000
    assert torch.equal(exercise.gradients(), given)


def test_chapters_alternate_and_both_kinds_get_both_endings() -> None:
    plan = SoakPlan(4, 3600)
    assert [plan.kind(chapter) for chapter in range(4)] == [ALL_REDUCES, TRAINING] * 2
    assert ending(0) != ending(1)
    met = {(plan.kind(chapter).name, ending(chapter).name) for chapter in range(4)}
    assert len(met) == 4
    without = SoakPlan(4, 3600, training=False)
    assert {without.kind(chapter) for chapter in range(4)} == {ALL_REDUCES}


@needs_a_lab
def test_training_goes_on_under_faults_and_without_a_killed_rank() -> None:
    plan = SoakPlan(hosts=3, seconds=16.0, size=240_000, least_chapter_seconds=8.0)
    kill = ENDINGS[0]
    with Lab(hosts=plan.hosts, rate="200mbit") as lab:
        chapter = run_chapter(lab, plan, TRAINING, kill)
    assert chapter.problems() == []
    assert (chapter.kind, chapter.ending) == ("training", "kill")
    for story in chapter.ranks[:-1]:  # all but the killed one
        assert story.checked > 0
        assert story.operations_at_loss is not None
        assert story.operations > story.operations_at_loss > 0
        assert story.lost_bytes > 0  # what the killed rank would have reduced
        assert story.drift is not None


def test_memory_that_was_freed_is_not_held() -> None:
    before = resident_bytes()
    blocks = [bytes(1_000) for _ in range(50_000)]
    assert resident_bytes() > before + 40_000_000
    blocks = blocks[::100]  # what is left lies all over the allocator's memory
    assert resident_bytes() < before + 10_000_000
    assert len(blocks) == 500
