"""The plots of training runs. Each function gives the figures for which there is data, maybe none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from . import words
from .figure import Figure, Series, cdf
from .quantiles import percentile
from .run_summary import waited_seconds
from .runs import Run, StepColumns
from .statistics import Bin, bins, known, mean, mean_by_step, step_durations

_Statistic = Callable[[Sequence[float]], float]

_TIME_LABEL = "seconds since the run's first record"
_LOG_FROM = 20.0  # times the median: a longer tail would press the rest of a curve against the axis
_DEADLINE_BINS = 100
_EXCLUSION_SPANS = 60


def step_times(runs: Sequence[Run]) -> list[Figure]:
    """How step times are distributed; for runs that log no steps, operation times."""
    with_steps = {
        run.label: step_durations(run.steps.step, run.steps.time, run.steps.seconds) for run in runs
    }
    others = {
        run.label: [value / 1e3 for value in known(run.operations.elapsed_ms)]
        for run in runs
        if not len(with_steps[run.label])
    }
    return [
        *_distribution(
            "step-times",
            "Step times",
            with_steps,
            "Share of steps that took at most so long, from when the last rank began to when the last ended. "
            "A steep curve is a steady run, a long way to the right at the top is a tail.",
        ),
        *_distribution(
            "operation-times",
            "Operation times",
            others,
            "Share of operations that took at most so long, of all ranks, without those that failed.",
        ),
    ]


def held_out_loss(runs: Sequence[Run]) -> list[Figure]:
    """What training is for, against the time it took."""
    series = [Series(run.label, *_loss(run, run.held_out)) for run in runs]
    caption = (
        "Loss on held-out data; the mean where several ranks evaluate. Lower and further left is better."
    )
    return _shown(Figure("held-out-loss", "Held-out loss", _TIME_LABEL, "loss", series, caption=caption))


def training_loss(runs: Sequence[Run]) -> list[Figure]:
    """Noisier, but logged by everybody."""
    series = [_line(run.label, bins(*_loss(run, run.steps)), mean) for run in runs]
    caption = "Training loss, mean over ranks and over neighbouring steps where there are many."
    return _shown(Figure("training-loss", "Training loss", _TIME_LABEL, "loss", series, caption=caption))


def missing_share(runs: Sequence[Run]) -> list[Figure]:
    """When contributions missed their deadline. No plot of zeros."""
    series = []
    for run in runs:
        if any(share > 0 for share in run.operations.missing_share):
            series.append(_missing_share(run))
    caption = (
        "Share of the contributions that missed the deadline: they are carried into a later step or, with "
        "best effort, lost. Line: of neighbouring operations of all ranks together; band: up to the worst."
    )
    label = "missed the deadline, % of an operation"
    return _shown(Figure("missing-share", "Missed deadlines", _TIME_LABEL, label, series, caption=caption))


def excluded_over_time(runs: Sequence[Run]) -> list[Figure]:
    """For each run: when the contributions of which rank were excluded."""
    return [figure for number, run in enumerate(runs, 1) for figure in _excluded_over_time(run, number)]


def deadlines(runs: Sequence[Run]) -> list[Figure]:
    """For each run with deadlines: what operations took, and what they were given."""
    return [figure for number, run in enumerate(runs, 1) for figure in _deadlines(run, number)]


def excluded_by_rank(runs: Sequence[Run]) -> list[Figure]:
    """Whose contributions were excluded; ranks without exclusions stand beside them for comparison."""
    shares = {run.label: _excluded_shares(run) for run in runs if len(run.exclusions.rank)}
    ranks = sorted({rank for found in shares.values() for rank in found})
    series = [
        Series(label, [ranks.index(rank) for rank in found], [100 * share for share in found.values()])
        for label, found in shares.items()
    ]
    caption = "Share of a rank's contributions that arrived after the deadline of the operation."
    return _by_rank("excluded-by-rank", "Excluded contributions by rank", "%", series, ranks, caption)


def waited_for(runs: Sequence[Run]) -> list[Figure]:
    """The rank that others wait for stands out."""
    waited = {run.label: dict(waited_seconds(run)) for run in runs if run.waits}
    ranks = sorted({rank for run in runs if run.waits for rank in run.ranks | set(run.waits)})
    series = [
        Series(label, list(range(len(ranks))), [found.get(rank, 0.0) for rank in ranks])
        for label, found in waited.items()
    ]
    caption = (
        "How long the other ranks waited for this rank's contribution after the median rank's, in all "
        "operations in which it came last."
    )
    return _by_rank("waited-for", "Ranks that others waited for", "seconds", series, ranks, caption)


def late_ranks(runs: Sequence[Run]) -> list[Figure]:
    """Ranks that begin their operations late."""
    behind = {run.label: _behind(run) for run in runs}
    ranks = sorted({rank for found in behind.values() for rank in found})
    series = [_late_series(label, found, ranks) for label, found in behind.items()]
    caption = (
        "How much later than the median peer a rank starts its operations; below zero: earlier. "
        "Bar: median; whisker: 10th to 90th percentile."
    )
    return _by_rank("late-ranks", "Late ranks", "ms behind the median", series, ranks, caption)


def _distribution(name: str, title: str, values: dict[str, list[float]], caption: str) -> list[Figure]:
    series = [cdf(label, found) for label, found in values.items() if len(found)]
    tails = [found[-1] / percentile(found, 0.5) for found in values.values() if len(found) and found[0] > 0]
    log = max(tails, default=0.0) > _LOG_FROM
    return _shown(Figure(name, title, "seconds", "share", series, x_log=log, caption=caption))


def _deadlines(run: Run, number: int) -> list[Figure]:
    columns, times = run.operations, np.asarray(_since_start(run, run.operations.time))
    sizes, bounded = np.asarray(columns.size), ~np.isnan(np.asarray(columns.deadline_ms))
    if not bounded.any():
        return []
    shown = _busiest_size(sizes[bounded])
    chosen = bounded & (sizes == shown)

    def binned(values: Sequence[float]) -> list[Bin]:
        return bins(times[chosen], np.asarray(values)[chosen], _DEADLINE_BINS)

    series = [
        _line("operations", binned(columns.elapsed_ms), _median, low=_p10, high=_p90),
        _line("the usual time", binned(columns.usual_ms), _median),
        _line("the deadline", binned(columns.deadline_ms), _median),
    ]
    caption = (
        f"Operations of {words.size(shown)}, the size that carries most of the data (others have other "
        "deadlines), all ranks: medians of neighbours in time; band: 10th to 90th percentile."
    )
    title = f"Deadlines: {run.label}"
    return _shown(Figure(f"deadlines-{number}", title, _TIME_LABEL, "ms", series, caption=caption))


def _busiest_size(sizes: npt.NDArray[np.int64]) -> int:
    """Of the operations that together moved most; of equals the larger."""
    found, counts = np.unique(sizes, return_counts=True)
    return int(found[np.flatnonzero(found * counts == (found * counts).max())[-1]])


def _missing_share(run: Run) -> Series:
    """A large operation counts for more than a small one, as its data does."""
    columns, times = run.operations, _since_start(run, run.operations.time)
    shares, sizes = np.asarray(columns.missing_share), np.asarray(columns.size, dtype=np.float64)
    sizes[np.isnan(shares)] = np.nan
    worst, part, whole = (bins(times, values) for values in (100 * shares, 100 * shares * sizes, sizes))
    pairs = zip(part, whole, strict=True)
    curve = [sum(missing.values) / max(sum(moved.values), 1.0) for missing, moved in pairs]
    highest = [_highest(one.values) for one in worst]
    return Series(run.label, [one.time for one in worst], curve, curve, highest)


def _excluded_over_time(run: Run, number: int) -> list[Figure]:
    """Sums over spans of time: every record counts, also of operations that excluded nothing."""
    times, rank = np.asarray(run.exclusions.time), np.asarray(run.exclusions.rank)
    excluded = np.asarray(run.exclusions.bytes, dtype=np.float64)
    if not len(times):
        return []
    moments = np.asarray(run.operations.time)
    edges = np.linspace(moments.min(), moments.max(), _EXCLUSION_SPANS + 1)
    edges[-1] = np.inf  # the last span has its end
    moved, _ = np.histogram(moments, edges, weights=np.asarray(run.operations.size, dtype=np.float64))
    middles = _since_start(run, (edges[:-1] + (edges[1] - edges[0]) / 2).tolist())
    series = []
    for one in sorted(set(rank.tolist())):
        sums, _ = np.histogram(times[rank == one], edges, weights=excluded[rank == one])
        shares = (100 * sums / np.maximum(moved, 1.0)).tolist()
        series.append(Series(f"rank {one}", middles, shares))
    caption = "Share of each rank's contributions that were excluded from their own step, by time."
    title = f"Excluded contributions: {run.label}"
    label = "excluded, % of the rank's contributions"
    return [Figure(f"excluded-{number}", title, _TIME_LABEL, label, series, caption=caption)]


def _excluded_shares(run: Run) -> dict[int, float]:
    moved = max(sum(run.operations.size), 1)
    total = dict.fromkeys(sorted(run.ranks), 0)
    for rank, count in zip(run.exclusions.rank, run.exclusions.bytes, strict=True):
        total[rank] = total.get(rank, 0) + count
    return {rank: count / moved for rank, count in sorted(total.items())}


def _behind(run: Run) -> dict[int, list[float]]:
    rank, behind = np.asarray(run.operations.rank), np.asarray(run.operations.behind_ms)
    by_rank = {number: known(behind[rank == number]) for number in sorted(run.ranks)}
    return {number: values for number, values in by_rank.items() if len(values)}


def _late_series(label: str, behind: dict[int, list[float]], ranks: Sequence[int]) -> Series:
    values = behind.values()
    return Series(
        label,
        [ranks.index(rank) for rank in behind],
        [_median(found) for found in values],
        [_p10(found) for found in values],
        [_p90(found) for found in values],
    )


def _by_rank(
    name: str, title: str, unit: str, series: Sequence[Series], ranks: Iterable[int], caption: str
) -> list[Figure]:
    categories = [str(rank) for rank in ranks]
    return _shown(Figure(name, title, "rank", unit, series, "bars", categories, caption=caption))


def _shown(figure: Figure) -> list[Figure]:
    """The figure without series that have no data; nothing if none is left."""
    series = [one for one in figure.series if one.x]
    return [replace(figure, series=series)] if series else []


def _loss(run: Run, columns: StepColumns) -> tuple[list[float], list[float]]:
    times, losses = mean_by_step(columns.step, columns.time, columns.loss)
    return _since_start(run, times), losses


def _since_start(run: Run, times: Sequence[float]) -> list[float]:
    return [time - run.first_time for time in times]


def _line(
    name: str,
    found: Sequence[Bin],
    statistic: _Statistic,
    low: _Statistic | None = None,
    high: _Statistic | None = None,
) -> Series:
    return Series(
        name,
        [one.time for one in found],
        [statistic(one.values) for one in found],
        None if low is None else [low(one.values) for one in found],
        None if high is None else [high(one.values) for one in found],
    )


def _median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def _p10(values: Sequence[float]) -> float:
    return percentile(values, 0.1)


def _p90(values: Sequence[float]) -> float:
    return percentile(values, 0.9)


def _highest(values: Sequence[float]) -> float:
    return values[-1]
