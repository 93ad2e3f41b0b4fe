"""Noisy neighbours in virtual time: others that send to a rank's switch port now and then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .simulated_network import Background


@dataclass(frozen=True)
class Neighbour:
    """Sends for a while to one rank, rests, and goes on to another. Both times are exponential."""

    on_seconds: float
    off_seconds: float
    bits_per_second: float

    def bursts(self, ranks: int, until_seconds: float, rng: np.random.Generator) -> list[Background]:
        """All bursts that begin before ``until_seconds``."""
        found: list[Background] = []
        time = float(rng.exponential(self.off_seconds))
        while time < until_seconds:
            end = time + float(rng.exponential(self.on_seconds))
            found.append(Background(int(rng.integers(ranks)), time, end, self.bits_per_second))
            time = end + float(rng.exponential(self.off_seconds))
        return found
