"""What ranks contribute in a soak, and the ledger that finds what is lost or counted twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

PERIOD = 7  # steps: then contributions repeat. Also the largest value
_UNKNOWN_STEPS = 5  # of a rank around a change of view: contributions in flight, and residuals
_ROUNDING = 1.0  # contributions: quarters of small integers are exact in bfloat16, thirds are not


def contribution(elements: int, step: int) -> Floats:
    """What every rank gives: small integers that differ from place to place and from step to step. The mean
    over all members is the same array, however many they are."""
    return (1 + (np.arange(elements) + step) % PERIOD).astype(np.float32)


class Ledger:
    """The sum of all results, against what was contributed.

    Every contribution counts exactly once, perhaps some steps late. Contributions of a rank that is out of
    the view are excepted, and counted.
    """

    def __init__(self, elements: int, ranks: int) -> None:
        self._total = np.zeros(elements)
        self._expected = np.zeros(elements)
        self._fewest = ranks
        self._view: int | None = None
        self._members: Sequence[int] = range(ranks)
        self._out = [0] * ranks  # steps out of the view, by rank
        self.view_changes = 0

    def expect(self, step: int) -> None:
        """All ranks contribute to this step."""
        self._expected += contribution(self._expected.size, step)

    def note_view(self, view: int, members: Sequence[int]) -> None:
        """The view of this step, from its report."""
        self.view_changes += self._view is not None and view != self._view
        self._view, self._members = view, members
        self._fewest = min(self._fewest, len(members))
        for rank in set(range(len(self._out))) - set(members):
            self._out[rank] += 1

    @property
    def out_of_view(self) -> int:
        """Steps of single ranks that were no members."""
        return sum(self._out)

    def add(self, result: Floats) -> None:
        """The mean of a step, or what a flush adds."""
        self._total += result

    def deviation(self, total: Floats | None = None) -> float:
        """The largest difference in any value, in contributions of one rank. ``total``: instead of the sum of
        what was added."""
        found = self._total if total is None else total
        per_step = np.abs(found - self._expected) / (1 + PERIOD) * 2  # a value is (1 + PERIOD) / 2 on average
        return float(per_step.max(initial=0.0)) * self._fewest

    @property
    def allowed(self) -> float:
        """The deviation that the changes of view explain; 0 where there was none. A rank that returned may
        bring what it contributed while it was out of the view."""
        if not self.view_changes:
            return 0.0
        returned = sum(self._out[rank] for rank in self._members)
        unknown = returned + _UNKNOWN_STEPS * self.view_changes
        largest = 2 * PERIOD / (1 + PERIOD)
        return unknown * largest + _ROUNDING
