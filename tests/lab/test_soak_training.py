"""Chapters of a soak that train: what they call wrong, and one under faults."""

from __future__ import annotations

import torch
from labs import needs_a_lab

from optireduce.lab import Lab
from optireduce.trials.soak.faults import ENDINGS, ending
from optireduce.trials.soak.loop import resident_bytes
from optireduce.trials.soak.plan import ALL_REDUCES, TRAINING, SoakPlan
from optireduce.trials.soak.run import run_chapter
from optireduce.trials.soak.train_rank import Exercise, parameter_sizes
from optireduce.trials.soak.values import contribution


def test_the_parameters_of_the_exercise_are_the_sum_of_what_was_given() -> None:
    sizes = parameter_sizes(60_000)
    assert len(sizes) == 3
    exercise = Exercise(sizes)
    optimizer = torch.optim.SGD(exercise.parameters(), lr=1.0)
    for step in range(3):
        optimizer.zero_grad()
        exercise(torch.split(torch.from_numpy(contribution(sum(sizes), step)), sizes)).backward()
        optimizer.step()
    expected = sum(contribution(60_000, step) for step in range(3))
    assert (exercise.values() == expected).all()


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
        assert story.operations_at_loss is not None
        assert story.operations > story.operations_at_loss > 0
        assert story.view_changes > 0
        assert story.deviation is not None
    assert chapter.checks.compared > 0


def test_memory_that_was_freed_is_not_held() -> None:
    before = resident_bytes()
    blocks = [bytes(1_000) for _ in range(50_000)]
    assert resident_bytes() > before + 40_000_000
    blocks = blocks[::100]  # what is left lies all over the allocator's memory
    assert resident_bytes() < before + 10_000_000
    assert len(blocks) == 500
