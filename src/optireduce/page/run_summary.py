"""The table at the top: one column a run, one row a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..quantiles import percentile
from . import words
from .parts import Rows
from .runs import Run
from .statistics import known, mean, slowest_by_step

_CLOSED_BY = ("complete", "early", "deadline")
_Cell = Callable[["Summary"], str]
_Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Summary:
    """The numbers of one run. Times in ascending order, in seconds."""

    label: str
    ranks: int
    steps: int
    step_seconds: Sequence[float]  # of the slowest rank, for each step
    operations: int  # one for each rank that logged it
    operation_seconds: Sequence[float]  # without those that failed
    lost_share: Sequence[float]  # for each operation that did not fail
    closed_by: Sequence[int]  # as _CLOSED_BY
    repaired_bytes: int
    absent: Sequence[int]
    stood_still_seconds: float
    errors: int


def summarize(run: Run) -> Summary:
    """The numbers of this run, whatever the order of its records."""
    failed = run.errors.total()
    return Summary(
        label=run.label,
        ranks=len(run.ranks),
        steps=len(set(run.steps.step)),
        step_seconds=slowest_by_step(run.steps.step, run.steps.seconds),
        operations=len(run.operations.time) + failed,
        operation_seconds=[value / 1e3 for value in known(run.operations.elapsed_ms)],
        lost_share=known(run.operations.lost_share),
        closed_by=[run.closed_by[name] for name in _CLOSED_BY],
        repaired_bytes=run.repaired_bytes,
        absent=sorted(run.absent),
        stood_still_seconds=math.fsum(known(run.operations.stood_still_ms)) / 1e3,
        errors=failed,
    )


def summary_table(runs: Sequence[Run]) -> Rows:
    """All runs side by side."""
    summaries = [summarize(run) for run in runs]
    rows = [(name, *(cell(summary) for summary in summaries)) for name, cell in _ROWS]
    return Rows("Summary", ("", *(run.label for run in runs)), rows)


def _of_steps(statistic: _Statistic, write: Callable[[float], str] = words.seconds) -> _Cell:
    return lambda summary: _written(summary.step_seconds, statistic, write)


def _of_operations(statistic: _Statistic) -> _Cell:
    return lambda summary: _written(summary.operation_seconds, statistic, words.seconds)


def _of_lost(statistic: _Statistic) -> _Cell:
    return lambda summary: _written(summary.lost_share, statistic, words.share)


def _if_operations(write: _Cell) -> _Cell:
    """A run that logs no operations has no zero of something, it has nothing."""
    return lambda summary: write(summary) if summary.operations else words.NOTHING


def _written(values: Sequence[float], statistic: _Statistic, write: Callable[[float], str]) -> str:
    return write(statistic(values)) if len(values) else words.NOTHING


def _p50(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def _p90(values: Sequence[float]) -> float:
    return percentile(values, 0.9)


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 0.99)


def _tail(values: Sequence[float]) -> float:
    return _p99(values) / _p50(values) if _p50(values) else math.nan


def _highest(values: Sequence[float]) -> float:
    return values[-1]


_ROWS: tuple[tuple[str, _Cell], ...] = (
    ("ranks", lambda summary: str(summary.ranks)),
    ("steps", lambda summary: f"{summary.steps:,}" if summary.steps else words.NOTHING),
    ("step time, mean", _of_steps(mean)),
    ("step time, p50", _of_steps(_p50)),
    ("step time, p90", _of_steps(_p90)),
    ("step time, p99", _of_steps(_p99)),
    ("step time, max", _of_steps(_highest)),
    ("step time, p99 / p50", _of_steps(_tail, "{:.2f}".format)),
    ("operations, all ranks", _if_operations(lambda summary: f"{summary.operations:,}")),
    ("operation time, p50", _of_operations(_p50)),
    ("operation time, p99", _of_operations(_p99)),
    ("lost share, mean", _of_lost(mean)),
    ("lost share, max", _of_lost(_highest)),
    (
        "closed by " + " / ".join(_CLOSED_BY),
        _if_operations(lambda summary: " / ".join(f"{count:,}" for count in summary.closed_by)),
    ),
    ("repaired", _if_operations(lambda summary: words.size(summary.repaired_bytes))),
    ("absent ranks seen", _if_operations(lambda summary: words.ranks(summary.absent))),
    ("stood still, all ranks", _if_operations(lambda summary: words.seconds(summary.stood_still_seconds))),
    ("failed operations", _if_operations(lambda summary: f"{summary.errors:,}")),
)
