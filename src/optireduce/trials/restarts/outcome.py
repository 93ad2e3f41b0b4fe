"""What the kills came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..soak.outcome import Checks

_MOST_MORE_SECONDS = 0.5
_MOST_OWN_STEPS = 30
_MOST_GROWTH = 0.01
_NOISE_BYTES = 4 << 20


@dataclass
class Return:
    """One kill, and what followed."""

    victim: int
    killed_at: float
    started_at: float | None = None
    began_at: float | None = None
    """When the new process had found its group."""
    whole_at: float | None = None
    """When it had taken a step as a member."""
    own_steps: int = 0
    """Of the new process until then."""
    incarnation: int | None = None
    longest: float = 0.0
    """Step of another rank, from the kill until the next one."""
    another_step: int = 0
    """Steps of the others while it was away."""


@dataclass
class Outcome:
    """Of a run."""

    returns: list[Return] = field(default_factory=list)
    checks: Checks = field(default_factory=Checks)
    steps: int = 0
    usual: list[float] = field(default_factory=list)
    """Steps of all ranks before the first kill."""
    resident: list[int] = field(default_factory=list)
    """Of the rank that was never killed, as it went."""
    failure: str | None = None

    @property
    def usual_seconds(self) -> float:
        """Of a step."""
        return statistics.median(self.usual) if self.usual else 0.0

    @property
    def growth(self) -> int:
        """Bytes, of the least of the last quarter over the least of the quarter after the first."""
        quarter = len(self.resident) // 4
        if not quarter:
            return 0
        return min(self.resident[-quarter:]) - min(self.resident[quarter : 2 * quarter])

    def problems(self) -> list[str]:
        """What must not be; empty when all is well."""
        found = [] if self.failure is None else [self.failure]
        found += self.checks.problems()
        if not self.checks.compared:
            found.append("nothing was compared")
        for number, each in enumerate(self.returns, start=1):
            name = f"kill {number} (rank {each.victim})"
            if each.whole_at is None:
                found.append(f"{name}: it did not become a member again")
            elif each.own_steps > _MOST_OWN_STEPS:
                found.append(f"{name}: it took {each.own_steps} steps until it was a member")
            if each.longest > self.usual_seconds + _MOST_MORE_SECONDS:
                found.append(f"{name}: a step of the others took {each.longest:.2f} s")
        early = min(self.resident, default=0)
        if self.growth > max(_NOISE_BYTES, _MOST_GROWTH * early):
            found.append(
                f"the memory of the rank that was never killed grew by {self.growth / 2**20:.1f} MiB"
            )
        return found


def longest_of(times: Sequence[float]) -> float:
    """0 of none."""
    return max(times, default=0.0)
