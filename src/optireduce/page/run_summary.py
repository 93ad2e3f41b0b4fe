"""The table at the top: one column a run, one row a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import words
from .parts import Rows
from .quantiles import percentile
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
    missing_share: float  # of all contributions; NaN: not known
    most_missing: float  # share, of the operation that missed most
    closed_by: Sequence[int]  # as _CLOSED_BY
    repaired_bytes: int
    carried_bytes: int
    void_bytes: int
    dropped_bytes: int
    views: int  # 0: not known
    out_of_view: Sequence[int]  # ranks that were no members at some time
    waited_for: int | None  # the rank that others waited for longest
    waited_seconds: float
    waited_share: float  # of all that ranks waited for any
    stood_still_seconds: float
    errors: int


def summarize(run: Run) -> Summary:
    """The numbers of this run, whatever the order of its records."""
    failed, waited = run.errors.total(), waited_seconds(run)
    return Summary(
        label=run.label,
        ranks=len(run.ranks),
        steps=len(set(run.steps.step)),
        step_seconds=step_durations(run.steps.step, run.steps.time, run.steps.seconds),
        held_out_loss=_last_held_out(run),
        operations=len(run.operations.time) + failed,
        operation_seconds=[value / 1e3 for value in known(run.operations.elapsed_ms)],
        missing_share=_missing_share(run),
        most_missing=max(known(run.operations.missing_share), default=math.nan),
        closed_by=[run.closed_by[name] for name in _CLOSED_BY],
        repaired_bytes=run.repaired_bytes,
        carried_bytes=run.carried_bytes,
        void_bytes=run.void_bytes,
        dropped_bytes=run.dropped_bytes,
        views=len({view for view, _ in run.views}),
        out_of_view=_out_of_view(run),
        waited_for=waited[0][0] if waited else None,
        waited_seconds=waited[0][1] if waited else 0.0,
        waited_share=waited[0][1] / math.fsum(seconds for _, seconds in waited) if waited else 0.0,
        stood_still_seconds=math.fsum(known(run.operations.stood_still_ms)) / 1e3,
        errors=failed,
    )


def summary_table(runs: Sequence[Run]) -> Rows:
    """All runs side by side."""
    summaries = [summarize(run) for run in runs]
    rows = [(name, *(cell(summary) for summary in summaries)) for name, cell in _ROWS]
    return Rows("Summary", ("", *(run.label for run in runs)), rows)


def headline(runs: Sequence[Run]) -> str:
    """Each run against the first, then the rank that each run waited for; nothing where neither is known."""
    summaries = [summarize(run) for run in runs]
    compared = []
    if summaries and summaries[0].step_seconds:
        compared = [_compared(other, summaries[0]) for other in summaries[1:] if other.step_seconds]
    return " ".join([*compared, *(_waited(summary) for summary in summaries if summary.waited_seconds > 0)])


def waited_seconds(run: Run) -> list[tuple[int, float]]:
    """For each rank how long others waited for its contributions in all, the longest first."""
    found = [(rank, math.fsum(waits) / 1e3) for rank, waits in run.waits.items()]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def _waited(run: Summary) -> str:
    share = words.share(run.waited_share)
    return (
        f"{run.label}: ranks waited longest for rank {run.waited_for} ({words.seconds(run.waited_seconds)}, "
        f"{share} of all waiting for late contributions)."
    )


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


def _missing_share(run: Run) -> float:
    """Weighted with their sizes: a large bucket has more contributions than a small one."""
    columns = run.operations
    pairs = zip(columns.missing_share, columns.size, strict=True)
    told = [(missing, size) for missing, size in pairs if missing == missing]
    moved = sum(size for _, size in told)
    return math.fsum(missing * size for missing, size in told) / moved if moved else math.nan


def _out_of_view(run: Run) -> list[int]:
    """Ranks that were members of some views and not of others."""
    members = [set(view) for _, view in run.views]
    ever = {rank for view in members for rank in view}
    return sorted(rank for rank in ever if any(rank not in view for view in members))


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


def _void_and_dropped(summary: Summary) -> str:
    return f"{words.size(summary.void_bytes)}, {words.size(summary.dropped_bytes)}"


def _waited_for(summary: Summary) -> str:
    if summary.waited_for is None:
        return "none"
    return f"rank {summary.waited_for}, {words.seconds(summary.waited_seconds)}"


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
    (
        "missed the deadline, of all contributions",
        lambda summary: _if_known(summary.missing_share, words.share),
    ),
    (
        "missed the deadline, most in an operation",
        lambda summary: _if_known(summary.most_missing, words.share),
    ),
    (
        "closed by " + " / ".join(_CLOSED_BY),
        _if_operations(lambda summary: " / ".join(f"{count:,}" for count in summary.closed_by)),
    ),
    ("repaired", _if_operations(lambda summary: words.size(summary.repaired_bytes))),
    ("carried into a later step", _if_operations(lambda summary: words.size(summary.carried_bytes))),
    ("void, dropped", _if_operations(_void_and_dropped)),
    ("waited for longest", _if_operations(_waited_for)),
    ("membership views", _if_operations(lambda summary: str(summary.views or words.NOTHING))),
    ("ranks out of a view", _if_operations(lambda summary: words.ranks(summary.out_of_view))),
    ("stood still, all ranks", _if_operations(lambda summary: words.seconds(summary.stood_still_seconds))),
    ("failed operations", _if_operations(lambda summary: f"{summary.errors:,}")),
)
