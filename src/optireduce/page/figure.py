"""What a plot shows, without a word about how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Series:
    """One curve, set of points or set of bars; ``low`` and ``high`` are the spread around y, where known.
    Those of one name look alike and are named once: repeated runs of the same thing."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Figure:
    """One plot. For ``bars`` the x of a series are places of ``categories``, others ignore these."""

    name: str  # of its file, without an ending
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["line", "points", "bars"] = "line"
    categories: Sequence[str] = ()
    x_log: bool = False
    y_log: bool = False
    caption: str = ""  # what was measured, how often, with what spread


def cdf(name: str, values: Sequence[float]) -> Series:
    """The share of values that are at most x, as a curve."""
    ordered = sorted(values)
    return Series(name, ordered, [(index + 1) / len(ordered) for index in range(len(ordered))])
