"""Arrays from whose mean one can read who is in it: rank r contributes 2^r times a small number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def contribution(rank: int, elements: int) -> Floats:
    """What a rank gives; never zero."""
    return _pattern(elements) * np.float32(2**rank)


def contributors(values: Floats, ranks: int) -> npt.NDArray[np.int64]:
    """For every value the ranks whose mean it is, a bit for each; 0 where it is zero, which means lost.

    AssertionError where it is no mean of anybody's. A mean of fewer than half of the ranks is divided by half
    of them.
    """
    sets = np.arange(2**ranks)
    means = sets / np.maximum(count(sets), ranks / 2)
    order = np.argsort(means)
    found = values / _pattern(values.size).astype(np.float64)
    nearest = _nearest(means[order], found)
    wrong = np.flatnonzero(~np.isclose(means[order][nearest], found, rtol=1e-5, atol=0.0))
    assert not wrong.size, f"value {wrong[0]} is {values[wrong[0]]}: nobody's mean"
    return sets[order][nearest]


def count(sets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many ranks each set has."""
    return np.array([number.bit_count() for number in range(int(sets.max()) + 1)])[sets]


def _pattern(elements: int) -> Floats:
    return (1 + np.arange(elements) % 7).astype(np.float32)


def _nearest(ordered: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    right = np.clip(np.searchsorted(ordered, values), 1, ordered.size - 1)
    return np.where(values - ordered[right - 1] < ordered[right] - values, right - 1, right)
