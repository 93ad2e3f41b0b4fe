"""The table at the top: one column a run, one row a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..quantiles import percentile
from . import words
from .parts import Rows
from .runs import Run
from .statistics import known, mean, mean_by_step, step_durations

_CLOSED_BY = ("complete", "early", "deadline")
_Cell = Callable[["Summary"], str]
_Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Summary:
    """The numbers of one run. Times in ascending order, in seconds."""

    label: str
    ranks: int
    steps: int
    step_seconds: Sequence[float]
    held_out_loss: float  # the last; NaN: none was logged
    operations: int  # one for each rank that logged it
    operation_seconds: Sequence[float]  # without those that failed
    lost_share: float  # of all their data; NaN: not known
    most_lost: float  # share, of the operation that lost most
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
        step_seconds=step_durations(run.steps.step, run.steps.time, run.steps.seconds),
        held_out_loss=_last_held_out(run),
        operations=len(run.operations.time) + failed,
        operation_seconds=[value / 1e3 for value in known(run.operations.elapsed_ms)],
        lost_share=_lost_share(run),
        most_lost=max(known(run.operations.lost_share), default=math.nan),
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


def headline(runs: Sequence[Run]) -> str:
    """Each run against the first, in a sentence; nothing where they have no steps to compare."""
    summaries = [summarize(run) for run in runs]
    if not summaries or not summaries[0].step_seconds:
        return ""
    return " ".join(_compared(other, summaries[0]) for other in summaries[1:] if other.step_seconds)


def _compared(run: Summary, first: Summary) -> str:
    ours, theirs = mean(run.step_seconds), mean(first.step_seconds)
    speed = f"{first.label}'s mean step takes {theirs / ours:.2f} times as long as {run.label}'s"
    if math.isnan(run.held_out_loss) or math.isnan(first.held_out_loss):
        return f"{speed}."
    return f"{speed}; their last held-out losses are {first.held_out_loss:.4f} and {run.held_out_loss:.4f}."


def _of_steps(statistic: _Statistic, write: Callable[[float], str] = words.seconds) -> _Cell:
    return lambda summary: _written(summary.step_seconds, statistic, write)


def _of_operations(statistic: _Statistic) -> _Cell:
    return lambda summary: _written(summary.operation_seconds, statistic, words.seconds)


def _if_operations(write: _Cell) -> _Cell:
    """A run that logs no operations has no zero of something, it has nothing."""
    return lambda summary: write(summary) if summary.operations else words.NOTHING


def _written(values: Sequence[float], statistic: _Statistic, write: Callable[[float], str]) -> str:
    return write(statistic(values)) if len(values) else words.NOTHING


def _if_known(value: float, write: Callable[[float], str]) -> str:
    return words.NOTHING if math.isnan(value) else write(value)


def _last_held_out(run: Run) -> float:
    _, losses = mean_by_step(run.held_out.step, run.held_out.time, run.held_out.loss)
    return losses[-1] if losses else math.nan


def _lost_share(run: Run) -> float:
    """Weighted with their sizes: what ranks tell each other about a step is a few bytes."""
    columns = run.operations
    told = [(lost, size) for lost, size in zip(columns.lost_share, columns.size, strict=True) if lost == lost]
    moved = sum(size for _, size in told)
    return math.fsum(lost * size for lost, size in told) / moved if moved else math.nan


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
    ("held-out loss, last", lambda summary: _if_known(summary.held_out_loss, "{:.4f}".format)),
    ("operations, all ranks", _if_operations(lambda summary: f"{summary.operations:,}")),
    ("operation time, p50", _of_operations(_p50)),
    ("operation time, p99", _of_operations(_p99)),
    ("lost, of all data", lambda summary: _if_known(summary.lost_share, words.share)),
    ("lost, most in an operation", lambda summary: _if_known(summary.most_lost, words.share)),
    (
        "closed by " + " / ".join(_CLOSED_BY),
        _if_operations(lambda summary: " / ".join(f"{count:,}" for count in summary.closed_by)),
    ),
    ("repaired", _if_operations(lambda summary: words.size(summary.repaired_bytes))),
    ("absent ranks seen", _if_operations(lambda summary: words.ranks(summary.absent))),
    ("stood still, all ranks", _if_operations(lambda summary: words.seconds(summary.stood_still_seconds))),
    ("failed operations", _if_operations(lambda summary: f"{summary.errors:,}")),
)
