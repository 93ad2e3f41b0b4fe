"""Fewer points for the same picture: a curve of 100,000 points is drawn on some 600 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .figure import Series

MOST_POINTS = 2_000


def thin(series: Series, most: int = MOST_POINTS) -> Series:
    """At most about ``most`` points in their order, with both ends and every peak: of each group of
    neighbours the lowest and the highest stay, of the spread too."""
    count = len(series.x)
    if count <= most:
        return series
    columns = [
        np.asarray(values, dtype=float)
        for values in (series.y, series.low, series.high)
        if values is not None
    ]
    groups = np.array_split(np.arange(count), max(1, most // (2 * len(columns))))
    kept = {0, count - 1}
    for group in groups:
        for column in columns:
            part = column[group]
            kept.update((int(group[part.argmin()]), int(group[part.argmax()])))
    order = sorted(kept)
    return replace(
        series,
        x=_pick(series.x, order),
        y=_pick(series.y, order),
        low=None if series.low is None else _pick(series.low, order),
        high=None if series.high is None else _pick(series.high, order),
    )


def _pick(values: Sequence[float], order: Sequence[int]) -> list[float]:
    return [values[index] for index in order]
