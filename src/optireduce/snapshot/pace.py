"""Whether a rank that replays what it missed catches up with the others, or should take a snapshot."""

from __future__ import annotations

import math

_FAR = 4  # times max_lag
_STEPS = 10  # of this rank, in which the distance must halve


class Pace:
    """The replay of one absence, or of what a snapshot left to replay."""

    def __init__(self, max_lag: int) -> None:
        self._far: float = _FAR * max_lag
        self._steps = 0
        self._before: float | None = None  # the distance when these steps began; None: it is not known yet

    def is_too_slow(self, distance: float) -> bool:
        """Asked once in each step of this rank: how many steps it is behind. A rank far behind does not even
        begin."""
        if self._before is None:
            self._before = distance
            return distance > self._far
        self._steps += 1
        if self._steps < _STEPS:
            return False
        is_slow = 2 * distance > self._before
        self._steps, self._before = 0, distance
        return is_slow

    def begin_after_snapshot(self) -> None:
        """It may be far behind again, and replays all the same while the distance shrinks."""
        self._steps, self._before, self._far = 0, None, math.inf
