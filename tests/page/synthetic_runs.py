"""Logs as four ranks write them, made up: training whose loss falls, one bad link, one late rank."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optireduce.operation_log import record
from optireduce.report import PeerLoss, Report

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
    """Between a third and half of the way the link from rank 2 to rank 1 is bad; rank 3 is late."""
    bad = rank == 1 and 100 < number < 150
    lost = random_numbers.randrange(20_000, 50_000) if bad else 0
    yield operation(
        rank,
        now,
        operation=number,
        elapsed_seconds=0.05 if bad else random_numbers.gauss(0.03, 0.002),
        bounded=number >= 20,
        closed_by="deadline" if bad else "complete",
        reduced_lost_bytes=lost,
        lost_by_peer={2: PeerLoss(0, lost)} if lost else {},
        bound_seconds=0.05 if number >= 20 else 0.0,
        early_seconds=0.03,
        behind_seconds=0.01 + random_numbers.gauss(0, 0.001) if rank == 3 else random_numbers.gauss(0, 0.001),
        rate_bytes_per_second=float("inf"),
    )
