"""From columns of a run to what is shown: means by step, bins over time. Pure functions.

NaN means "not known" and is left out everywhere. Whatever the order of the records, results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_BINS = 200  # more cannot be told apart in a plot

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Neighbours in time."""

    time: float  # their mean
    values: list[float]  # ascending


def known(values: Sequence[float] | _Array) -> list[float]:
    """The values that are not NaN, in ascending order."""
    numbers = np.asarray(values, dtype=np.float64)
    return _ascending(numbers[~np.isnan(numbers)])


def mean(values: Sequence[float]) -> float:
    """Exactly rounded, so that the order of the values cannot be seen in it."""
    return math.fsum(values) / len(values)


def step_durations(steps: Sequence[int], times: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """How long each step took the group, in ascending order: from when the last rank began it (``seconds``
    before its end) until the last rank ended it (at ``times``).

    They add up to the time that training took. Those of each step's slowest rank would not: a rank that ends
    one step late has begun the next one late.
    """
    step, end, own = np.asarray(steps), np.asarray(times), np.asarray(seconds)
    step, end, own = step[~np.isnan(own)], end[~np.isnan(own)], own[~np.isnan(own)]
    if not len(step):
        return []
    order = np.argsort(step, kind="stable")
    _, starts, ranks = np.unique(step[order], return_index=True, return_counts=True)
    ended = np.repeat(np.maximum.reduceat(end[order], starts), ranks)
    return _ascending(np.minimum.reduceat(own[order] + (ended - end[order]), starts))


def mean_by_step(
    steps: Sequence[int], times: Sequence[float], values: Sequence[float]
) -> tuple[list[float], list[float]]:
    """For each step the time at which the last rank finished it, and the mean over ranks."""
    ends = {step: ended[-1] for step, ended in _by_step(steps, times).items()}
    means = {step: mean(found) for step, found in _by_step(steps, values).items()}
    order = sorted(means, key=lambda step: (ends[step], step))
    return [ends[step] for step in order], [means[step] for step in order]


def bins(
    times: Sequence[float] | _Array, values: Sequence[float] | _Array, most: int = MOST_BINS
) -> list[Bin]:
    """The known values in at most ``most`` spans of equal length, without those that are empty."""
    time, value = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    time, value = time[~np.isnan(value)], value[~np.isnan(value)]
    if not len(time):
        return []
    order = np.argsort(time)
    time, value = time[order], value[order]
    edges = np.linspace(time[0], time[-1], most + 1)[:-1]
    starts = np.unique(np.searchsorted(time, edges))
    parts = zip(np.split(time, starts[1:]), np.split(value, starts[1:]), strict=True)
    return [Bin(float(part.mean()), _ascending(found)) for part, found in parts]


def _by_step(steps: Sequence[int], values: Sequence[float]) -> dict[int, list[float]]:
    """For each step its known values in ascending order."""
    step, value = np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64)
    step, value = step[~np.isnan(value)], value[~np.isnan(value)]
    order = np.lexsort((value, step))
    numbers, starts = np.unique(step[order], return_index=True)
    parts = np.split(value[order], starts[1:])
    return {number: part.tolist() for number, part in zip(numbers.tolist(), parts, strict=False)}


def _ascending(values: _Array) -> list[float]:
    found: list[float] = np.sort(values).tolist()
    return found
