"""Late processes: in some steps one random rank computes longer than the others. Its engine goes on."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .errors import LabError


@dataclass(frozen=True)
class Lateness:
    """In this share of the steps a random rank is so many seconds late. Programs that compute ask for it: no
    lab can stop one thread of a process and not the others."""

    share: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise LabError(f"share = {self.share!r} is not usable: it must be from 0 to 1")
        if self.seconds < 0:
            raise LabError(f"seconds = {self.seconds!r} is not usable: it must be 0 or more")

    def delay(self, seed: int, rank: int, ranks: int, step: int) -> float:
        """Seconds that this rank is late in this step. All ranks draw the same numbers."""
        chance = Random(seed * 1_000_003 + step)
        return self.seconds if chance.random() < self.share and chance.randrange(ranks) == rank else 0.0


ON_TIME = Lateness(0.0, 0.0)
