"""What a user logs in three lines must be what the report reads, and must never end a training."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path

import pytest

from optireduce.page.runs import read_run
from optireduce.page.training_log import TrainingLog


class Scalar:
    """As a tensor with one element."""

    def __float__(self) -> float:
        return 1.5


def test_lines_are_read_back(tmp_path: Path) -> None:
    with TrainingLog(str(tmp_path / "run-{rank}.jsonl"), 3, clock=lambda: 100.5) as log:
        log.step(1, 0.25, Scalar())
        log.step(2, 0.5)
        log.held_out(2, 1.25)
        log.held_out(1, 2.25, time=99.0)
    run = read_run("run", [tmp_path / "run-3.jsonl"])
    assert run.ranks == {3}
    assert list(run.steps.step) == [1, 2]
    assert list(run.steps.seconds) == [0.25, 0.5]
    assert run.steps.loss[0] == 1.5
    assert math.isnan(run.steps.loss[1])
    assert list(run.held_out.time) == [100.5, 99.0]
    assert list(run.held_out.loss) == [1.25, 2.25]


def test_a_loss_that_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TrainingLog(str(path), 0) as log:
        log.step(1, 0.25, math.nan)
        log.held_out(1, math.inf)
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in path.open()] == [None, None]


def test_lines_are_there_at_once_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("before\n")
    one, other = TrainingLog(str(path), 0), TrainingLog(str(path), 1)
    one.step(1, 0.25)
    other.step(1, 0.5)
    one.step(2, 0.75)
    assert len(path.read_text().splitlines()) == 4  # neither is closed
    one.close()
    one.close()
    one.step(3, 1.0)
    other.close()
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_ends_the_log_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="optireduce"), TrainingLog("/dev/full", 0) as log:
        log.step(1, 0.25)
        log.step(2, 0.25)
    (warning,) = [record.message for record in caplog.records]
    assert "training log /dev/full cannot be written" in warning
    assert "No space left" in warning


def test_a_folder_that_does_not_exist_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        TrainingLog(str(tmp_path / "none" / "log.jsonl"), 0)
