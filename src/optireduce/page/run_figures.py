"""The plots of training runs. Each function gives the figures for which there is data, maybe none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..quantiles import percentile
from . import words
from .figure import Figure, Series, cdf
from .runs import Run, StepColumns
from .statistics import Bin, bins, known, mean, mean_by_step, step_durations

_Statistic = Callable[[Sequence[float]], float]

_TIME_LABEL = "seconds since the run's first record"
_LOG_FROM = 20.0  # times the median: a longer tail would press the rest of a curve against the axis
_DEADLINE_BINS = 100


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


def lost_share(runs: Sequence[Run]) -> list[Figure]:
    """When data was lost. No plot of zeros."""
    series = []
    for run in runs:
        if any(share > 0 for share in run.operations.lost_share):
            series.append(_lost_share(run))
    caption = (
        "Share of the data that operations did without. "
        "Line: of neighbouring operations of all ranks together; band: up to the worst of them."
    )
    return _shown(
        Figure("lost-share", "Lost share", _TIME_LABEL, "lost, % of an operation", series, caption=caption)
    )


def deadlines(runs: Sequence[Run]) -> list[Figure]:
    """For each run with deadlines: what operations took, and what they were given."""
    return [figure for number, run in enumerate(runs, 1) for figure in _deadlines(run, number)]


def lost_by_peer(runs: Sequence[Run]) -> list[Figure]:
    """Whose data is missing; those of whom nothing is stand beside them for comparison."""
    totals = {run.label: _sent_and_lost(run) for run in runs if run.lost_by_link.total()}
    peers = sorted({peer for total in totals.values() for peer in total})
    series = [
        Series(label, [peers.index(peer) for peer in total], [lost / 1e6 for lost in total.values()])
        for label, total in totals.items()
    ]
    caption = "Data that did not come in time, by the rank that should have sent it, as all others logged it."
    return _by_rank("lost-by-peer", "Lost data by sender", "MB", series, peers, caption)


def late_ranks(runs: Sequence[Run]) -> list[Figure]:
    """Who keeps the others waiting."""
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
    sizes, bounded = np.asarray(columns.size), ~np.isnan(np.asarray(columns.bound_ms))
    if not bounded.any():
        return []
    shown = _busiest_size(sizes[bounded])
    chosen = bounded & (sizes == shown)

    def binned(values: Sequence[float]) -> list[Bin]:
        return bins(times[chosen], np.asarray(values)[chosen], _DEADLINE_BINS)

    series = [
        _line("operations", binned(columns.elapsed_ms), _median, low=_p10, high=_p90),
        _line("tC, the usual time", binned(columns.early_ms), _median),
        _line("tB, the deadline", binned(columns.bound_ms), _median),
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


def _lost_share(run: Run) -> Series:
    """A large operation counts for more than a small one, as its data does."""
    columns, times = run.operations, _since_start(run, run.operations.time)
    shares, sizes = np.asarray(columns.lost_share), np.asarray(columns.size, dtype=np.float64)
    sizes[np.isnan(shares)] = np.nan
    worst, lost, moved = (bins(times, values) for values in (100 * shares, 100 * shares * sizes, sizes))
    pairs = zip(lost, moved, strict=True)
    curve = [sum(part.values) / max(sum(whole.values), 1.0) for part, whole in pairs]
    highest = [_highest(one.values) for one in worst]
    return Series(run.label, [one.time for one in worst], curve, curve, highest)


def _sent_and_lost(run: Run) -> dict[int, int]:
    total = dict.fromkeys(sorted(run.ranks), 0)
    for (sender, _), lost in sorted(run.lost_by_link.items()):
        total[sender] = total.get(sender, 0) + lost
    return total


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
