"""How far the figures of one run in the lab can be trusted: rounds in which all systems took turns are drawn
anew, as if the run were repeated (a bootstrap). Operations of one round are not independent: they share its
bursts. So whole rounds are drawn, the same for all systems."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from ..page.quantiles import percentile
from ..trials.allreduce.comparison import Comparison

_DRAWS = 1_000
_SEED = 1

Seconds = Callable[[str], list[float]]  # of a system's operations
NOTE = f"In brackets: where nine tenths of {_DRAWS:,} draws of the rounds lie, in which all take turns."


class Interval(NamedTuple):
    """Where nine of ten repetitions would lie."""

    low: float
    high: float

    def text(self, spec: str = ".2f", scale: float = 1.0) -> str:
        """As in ``[1.32, 1.48]``."""
        return f"[{self.low * scale:{spec}}, {self.high * scale:{spec}}]"


def interval(found: Comparison, block: int, statistic: Callable[[Seconds], float]) -> Interval:
    """Of a statistic over rounds of ``block`` operations of each system."""
    rounds = {name: _rounds(measured.seconds(), block) for name, measured in found.systems.items()}
    count = min(map(len, rounds.values()))
    chance = random.Random(_SEED)

    def repeated() -> float:
        drawn = chance.choices(range(count), k=count)
        return statistic(lambda name: [time for one in drawn for time in rounds[name][one]])

    values = [repeated() for _ in range(_DRAWS)]
    return Interval(percentile(values, 0.05), percentile(values, 0.95))


def _rounds(seconds: list[float], block: int) -> list[list[float]]:
    return [seconds[start : start + block] for start in range(0, len(seconds), block)]
