"""Whether replicas stay together in a long run: how far apart they are, and whether that grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

_MOST_GROWTH = 1.1  # drift goes up and down: the two last quarters' means may differ by that much


@dataclass(frozen=True)
class DriftVerdict:
    """The second half of a run, when the drift should have settled."""

    third_quarter: float
    last_quarter: float
    """Means over these quarters of the run."""
    most: float
    """Of the second half."""
    limit: float

    @property
    def growth(self) -> float:
        """How much larger it is in the last quarter than in the third."""
        return self.last_quarter / self.third_quarter if self.third_quarter else 1.0

    @property
    def bounded(self) -> bool:
        """Below the limit, and no longer growing."""
        return self.most < self.limit and self.growth < _MOST_GROWTH


def judge(drift: Sequence[float], limit: float) -> DriftVerdict:
    """The drift at equal distances through a whole run."""
    half, three_quarters = len(drift) // 2, len(drift) * 3 // 4
    return DriftVerdict(
        third_quarter=fmean(drift[half:three_quarters]),
        last_quarter=fmean(drift[three_quarters:]),
        most=max(drift[half:]),
        limit=limit,
    )
