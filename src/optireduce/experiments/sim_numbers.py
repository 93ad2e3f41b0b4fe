"""A sample in a few numbers, and many of them as a curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from ..page.figure import Series


@dataclass(frozen=True)
class Summary:
    """A mean and how far single values lie from it."""

    mean: float
    spread: float
    """Standard deviation; 0 for a single value, which tells nothing of it."""
    count: int

    @property
    def low(self) -> float:
        """One standard deviation below."""
        return self.mean - self.spread

    @property
    def high(self) -> float:
        """One standard deviation above."""
        return self.mean + self.spread

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 for a single value."""
        return self.spread / sqrt(self.count)

    @property
    def as_milliseconds(self) -> str:
        """Of seconds, for a table."""
        return f"{self.mean * 1e3:.1f} ± {self.spread * 1e3:.1f}"


def summary(values: Sequence[float]) -> Summary:
    """Of at least one value."""
    return Summary(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values))


def spread_series(name: str, x: Sequence[float], found: Sequence[Summary], scale: float = 1.0) -> Series:
    """Means with one standard deviation to either side, in another unit if ``scale`` says so."""
    return Series(
        name,
        x,
        [scale * each.mean for each in found],
        [scale * each.low for each in found],
        [scale * each.high for each in found],
    )
