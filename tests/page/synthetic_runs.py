"""Logs as four ranks write them, made up: training whose loss falls, a rank that is excluded for a while,
another that is late, and a change of view."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optireduce.operation_log import record
from optireduce.report import Report

RANKS = 4
START = 1_700_000_000.0


def operation(rank: int = 0, time: float = START, error: str | None = None, **fields: Any) -> dict[str, Any]:
    """A line of the operation log, made by the code that writes real ones."""
    values: dict[str, Any] = {"operation": 1, "bytes": 1_000_000, "elapsed_seconds": 0.01} | fields
    return record(rank, time, Report(**values), error)


def step(rank: int, number: int, seconds: float, loss: float | None, time: float = START) -> dict[str, Any]:
    return {"kind": "step", "time": time, "rank": rank, "step": number, "seconds": seconds, "loss": loss}


def held_out(rank: int, number: int, loss: float | None, time: float = START) -> dict[str, Any]:
    return {"kind": "held_out", "time": time, "rank": rank, "step": number, "loss": loss}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def write_run(folder: Path, backend: str, steps: int = 300, seed: int = 1) -> Path:
    """A folder with the logs of one run: steps for any backend, operations only for ours."""
    folder.mkdir(parents=True)
    random_numbers = random.Random(seed)
    lines: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}
    now = START
    for number in range(steps):
        seconds = 0.1 + random_numbers.expovariate(1 / 0.02) * (3 if backend == "gloo" else 1)
        now += seconds
        for rank in range(RANKS):
            loss = 4 * 0.99**number + 1 + random_numbers.gauss(0, 0.1)
            lines[rank].append(step(rank, number, seconds + 0.001 * rank, loss, now))
            if backend == "optireduce":
                lines[rank] += _operations(rank, number, now, random_numbers)
        if number % 20 == 0:
            lines[0].append(held_out(0, number, 4 * 0.99**number + 1.1, now))
    for rank, records in lines.items():
        write(folder / f"run-{rank}.jsonl", records)
    return folder


def _operations(
    rank: int, number: int, now: float, random_numbers: random.Random
) -> Iterator[dict[str, Any]]:
    """Between a third and half of the way contributions of rank 2 are excluded; others wait for rank 3; at
    the end rank 0 is out of the view."""
    bad = 100 < number < 150
    out = number >= 270
    if out and rank == 0:
        return
    yield operation(
        rank,
        now,
        operation=number,
        elapsed_seconds=0.05 if bad else random_numbers.gauss(0.03, 0.002),
        bounded=number >= 20,
        closed_by="deadline" if bad else "complete",
        excluded={2: 150_000 + 1_000 * (number % 50)} if bad else {},
        carried_bytes=150_000 if bad and rank == 2 else 0,
        view=2 if out else 1,
        members=(1, 2, 3) if out else (0, 1, 2, 3),
        waited_for=None if rank == 3 else 3,
        waited_seconds=0.0 if rank == 3 else 0.01,
        deadline_seconds=0.05 if number >= 20 else 0.0,
        usual_seconds=0.03,
        behind_seconds=0.01 + random_numbers.gauss(0, 0.001) if rank == 3 else random_numbers.gauss(0, 0.001),
        bytes_per_second=float("inf"),
    )
