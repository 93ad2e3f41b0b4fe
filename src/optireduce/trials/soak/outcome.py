"""What a soak came to, and whether that is good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_MOST_GROWTH = 0.01
NO_DEVIATION = 1e-3  # thirds are not exact


@dataclass
class RankStory:
    """One rank in one chapter."""

    rank: int
    noise_bytes: float  # see SoakPlan
    operations: int = 0
    bytes: int = 0
    missing: float = 0.0  # bytes of contributions that missed their deadline, as a share of the members
    deviation: float | None = None  # of the sum of all results, see Ledger; None: not known
    allowed: float = 0.0
    view_changes: int = 0
    out_of_view: int = 0  # steps of single ranks
    operations_at_loss: int | None = None  # when the last rank was lost
    resident_early: int = 0  # the least when all was quiet, in the first half of the rotation of faults ...
    resident_late: int = 0  # ... and in the second
    longest_silence: float = 0.0
    ended: str | None = None  # the error that ended it

    @property
    def growth(self) -> float:
        """Of its memory, once every fault has been seen."""
        return (
            self.resident_late / self.resident_early - 1
            if self.resident_early and self.resident_late
            else 0.0
        )

    @property
    def grows(self) -> bool:
        """Whether that is more than chance."""
        noise = self.resident_late - self.resident_early <= self.noise_bytes
        return self.growth > _MOST_GROWTH and not noise


class Checks:
    """Checksums of results, which must be the same on all members."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int]] = {}  # by step: who told first, and what
        self._different: dict[int, tuple[int, int]] = {}
        self.compared = 0

    def add(self, rank: int, step: int, checksum: int) -> None:
        """What a rank tells of a step."""
        first, theirs = self._first.setdefault(step, (rank, checksum))
        self.compared += rank != first
        if checksum != theirs:
            self._different.setdefault(step, (first, rank))

    def problems(self) -> Iterator[str]:
        """The first step that differs, and how many do."""
        if self._different:
            step = min(self._different)
            one, other = self._different[step]
            yield (
                f"{len(self._different)} results differ between ranks; the first: step {step}, ranks {one} "
                f"and {other}"
            )


@dataclass
class Chapter:
    """From the forming of a group to its end."""

    ending: str
    victim: int
    ranks: list[RankStory]
    failure: str | None = None
    kind: str = "all-reduce"
    checks: Checks = field(default_factory=lambda: Checks())

    def problems(self) -> list[str]:
        """What must not be; empty when all is well."""
        found = [] if self.failure is None else [self.failure]
        found += self.checks.problems()
        for story in self.ranks:
            name = f"rank {story.rank}"
            if story.grows:
                found.append(f"{name}: memory grew by {story.growth:.1%}")
            if story.rank == self.victim:
                continue
            if story.ended is not None:
                found.append(f"{name} ended early: {story.ended}")
            elif story.deviation is None:
                found.append(f"{name}: what it has summed up was not told")
            elif not story.deviation <= story.allowed + NO_DEVIATION:
                found.append(
                    f"{name}: a value is off by {story.deviation:.2f} contributions; {story.view_changes} "
                    f"changes of view explain {story.allowed:.2f}"
                )
            if story.operations_at_loss is not None and story.operations <= story.operations_at_loss:
                found.append(f"{name} did not go on without rank {self.victim}")
        return found


@dataclass
class Outcome:
    """All chapters."""

    chapters: list[Chapter] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Of all chapters, each with its number."""
        return [
            f"chapter {number}: {problem}"
            for number, chapter in enumerate(self.chapters, start=1)
            for problem in chapter.problems()
        ]
