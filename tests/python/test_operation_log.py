"""The log must explain every operation afterwards, and must never be what makes training slow or end."""

from __future__ import annotations

import json
import os
import re
import select
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import fake_group

from optireduce import Config, Report
from optireduce.operation_log import OperationLog

NEVER_SECONDS = 1e6


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_operation_is_a_line_with_all_fields(tmp_path: Path) -> None:
    log = OperationLog(str(tmp_path / "log-{rank}.jsonl"), rank=3, clock=lambda: 1_700_000_000.5)
    log.write(
        Report(
            operation=7,
            bytes=4_000,
            elapsed_seconds=0.5,
            closed_by="deadline",
            members=(0, 2, 3),
            excluded={2: 400, 0: 800},
            non_finite=(6,),
            waited_for=2,
            waited_seconds=0.25,
            bytes_per_second=float("inf"),
            behind_seconds=-0.5,
        )
    )
    log.write(Report(8, 0, 0.0), error="rank 2 left")
    log.close()
    first, second = lines(tmp_path / "log-3.jsonl")
    names = {re.sub("_seconds$", "_ms", field.name) for field in fields(Report)}
    assert first.keys() == (names - {"bytes_per_second"}) | {
        "bytes_per_second", "time", "rank", "excluded_share", "error"
    }  # fmt: skip
    expected = {
        "operation": 7,
        "time": 1_700_000_000.5,
        "rank": 3,
        "bytes": 4_000,
        "elapsed_ms": 500.0,
        "closed_by": "deadline",
        "members": [0, 2, 3],
        "excluded": {"2": 400, "0": 800},
        "excluded_share": 0.1,
        "non_finite": [6],
        "waited_for": 2,
        "waited_ms": 250.0,
        "behind_ms": -500.0,
        "bytes_per_second": None,
        "error": None,
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["operation"], second["error"]) == (8, "rank 2 left")


def test_a_group_logs_what_it_does_well_or_badly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = Config(operation_log=str(tmp_path / "{rank}.jsonl"))
    communicator, engine = fake_group(monkeypatch, config)
    communicator.all_reduce(np.zeros(100, np.float32))
    engine.outcome = {"error_code": 1, "error": "rank 1 did not come", "ranks": [1]}
    with pytest.raises(TimeoutError):
        communicator.all_reduce(np.zeros(200, np.float32))
    communicator.close()
    found = lines(tmp_path / "0.jsonl")
    assert [(line["operation"], line["bytes"], line["error"]) for line in found] == [
        (0, 400, None),
        (1, 800, "rank 1 did not come"),
    ]


def test_nothing_is_written_unless_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    communicator, _ = fake_group(monkeypatch)
    communicator.all_reduce(np.zeros(100, np.float32))
    communicator.close()
    assert list(tmp_path.iterdir()) == []


def test_lines_come_while_the_group_lives(tmp_path: Path) -> None:
    """A run that is killed must leave its log; a pipe becomes readable with the first line."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = OperationLog(str(path), rank=0, flush_seconds=0.01)
    log.write(Report(5, 0, 0.0))
    assert select.select([pipe], [], [], 100.0)[0]
    assert json.loads(os.read(pipe, 4_096))["operation"] == 5
    log.close()
    os.close(pipe)


def test_an_old_file_is_continued(tmp_path: Path) -> None:
    for operation in range(2):
        log = OperationLog(str(tmp_path / "log"), rank=0)
        log.write(Report(operation, 0, 0.0))
        log.close()
    assert [line["operation"] for line in lines(tmp_path / "log")] == [0, 1]


@pytest.mark.parametrize("path", ["missing/log.jsonl", "/dev/full"])
def test_a_disk_that_fails_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    log = OperationLog(path, rank=0, flush_seconds=0.001)
    for operation in range(1_000):
        log.write(Report(operation, 0, 0.0))
    log.close()
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"operation log {path} cannot be written"
    ]


def test_memory_stays_bounded_and_what_is_missing_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = OperationLog(str(tmp_path / "log"), rank=0, flush_seconds=NEVER_SECONDS, most_waiting=3)
    for operation in range(5):
        log.write(Report(operation, 0, 0.0))
    log.close()
    assert [line["operation"] for line in lines(tmp_path / "log")] == [0, 1, 2]
    assert "2 operations are missing" in caplog.text


def test_a_forked_child_does_not_write_its_parents_lines(tmp_path: Path) -> None:
    log = OperationLog(str(tmp_path / "log"), rank=0, flush_seconds=NEVER_SECONDS)
    log.write(Report(0, 0, 0.0))
    child = os.fork()
    if child == 0:
        log._thread = None  # type: ignore[assignment] # a close() that goes on fails
        try:
            log.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.close()
    assert len(lines(tmp_path / "log")) == 1
