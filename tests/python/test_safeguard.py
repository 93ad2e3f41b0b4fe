"""Steps that exclude too much: skipped, and an end that names the ranks."""

from __future__ import annotations

import logging

import pytest

from optireduce import StepReport, TrainingHaltedError
from optireduce.safeguard import Safeguard


def step(share: float, number: int = 0, rank: int = 1, non_finite: tuple[int, ...] = ()) -> StepReport:
    excluded = {rank: int(share * 4_000), 3: 1} if share else {}
    return StepReport(number, 1, 1_000, 0.1, excluded=excluded, excluded_share=share, non_finite=non_finite)


def judge(safeguard: Safeguard, share: float, **others: int) -> bool:
    return safeguard.may_step(step(share, **others), share)


def test_a_step_that_excludes_little_is_taken() -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    assert all(judge(safeguard, 0.5) for _ in range(10))
    assert safeguard.skipped_steps == 0


def test_by_default_no_step_is_skipped() -> None:
    assert judge(Safeguard(skip_above=1.0, halt_after=1), 1.0)


def test_steps_that_exclude_much_are_skipped_and_end_training_when_they_do_not_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    with caplog.at_level(logging.WARNING, "optireduce"):
        assert not judge(safeguard, 0.6, number=7)
    assert "step 7 excluded 60.0 % of the contributions and is skipped on all ranks" in caplog.text
    assert not judge(safeguard, 0.6)
    assert judge(safeguard, 0.1)  # the row is broken
    assert not judge(safeguard, 0.6)
    assert not judge(safeguard, 0.6)
    with pytest.raises(TrainingHaltedError) as raised:
        judge(safeguard, 0.6, rank=2)
    assert raised.value.ranks == (2,)
    assert "3 steps in a row excluded more than skip_above = 50%" in str(raised.value)
    assert "most of them came from rank 2." in str(raised.value)
    assert safeguard.skipped_steps == 5


def test_a_rank_that_sends_no_numbers_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    with caplog.at_level(logging.WARNING, "optireduce"):
        for number in range(3):
            assert safeguard.may_step(step(0.0, number, non_finite=(3,)), 0.0)
    assert [record.message for record in caplog.records] == ["step 0: infinities or NaNs came from rank 3"]
