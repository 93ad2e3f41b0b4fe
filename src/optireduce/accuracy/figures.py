"""From single runs to rows of a table: means over seeds, and differences to the exact run of each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from .strategies import EXACT, Loss
from .training import Case, Run


class Cell(NamedTuple):
    """What runs that differ only in their seed have in common."""

    task: str
    strategy: str
    loss: Loss | None


@dataclass(frozen=True)
class Difference:
    """To the exact runs of the same seeds."""

    mean: float
    error: float | None
    """Its standard error; None for a single seed, which tells nothing of it."""


@dataclass(frozen=True)
class Row:
    """One strategy under one kind of loss."""

    cell: Cell
    seeds: int
    final_loss: float
    difference: Difference | None
    """None where there is no exact run to compare with."""
    score: float | None
    apart: float
    equal: bool
    lost_share: float


Results = Sequence[tuple[Case, Run]]


def cell_of(case: Case) -> Cell:
    """Where a run belongs."""
    return Cell(case.task.name, case.strategy.name, case.loss)


def rows(results: Results) -> list[Row]:
    """In the order in which the first run of each was made."""
    by_cell: dict[Cell, dict[int, Run]] = {}
    for case, run in results:
        by_cell.setdefault(cell_of(case), {})[case.seed] = run
    return [
        _row(cell, runs, by_cell.get(Cell(cell.task, EXACT.name, None), {})) for cell, runs in by_cell.items()
    ]


def as_json(results: Results) -> list[dict[str, Any]]:
    """Every run with all that it has shown."""
    return [place_as_json(case) | {"final_loss": run.final_loss} | asdict(run) for case, run in results]


def place_as_json(case: Case) -> dict[str, Any]:
    """Which run it was."""
    return {
        "task": case.task.name,
        "strategy": asdict(case.strategy),
        "loss": None if case.loss is None else asdict(case.loss),
        "seed": case.seed,
        "steps": case.steps,
    }


def _row(cell: Cell, runs: Mapping[int, Run], exact: Mapping[int, Run]) -> Row:
    scores = [run.score for run in runs.values() if run.score is not None]
    return Row(
        cell=cell,
        seeds=len(runs),
        final_loss=fmean(run.final_loss for run in runs.values()),
        difference=_difference(runs, exact),
        score=fmean(scores) if scores else None,
        apart=fmean(run.apart[-1] for run in runs.values()),
        equal=all(run.equal for run in runs.values()),
        lost_share=fmean(run.lost_share for run in runs.values()),
    )


def _difference(runs: Mapping[int, Run], exact: Mapping[int, Run]) -> Difference | None:
    differences = [run.final_loss - exact[seed].final_loss for seed, run in runs.items() if seed in exact]
    return Difference(fmean(differences), standard_error(differences)) if differences else None


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
