"""What a soak came to, and whether that is good."""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_GROWTH = 0.01
_MOST_DRIFT = 0.1


@dataclass
class RankStory:
    """One rank in one chapter."""

    rank: int
    noise_bytes: float  # see SoakPlan
    operations: int = 0
    bytes: int = 0
    lost_bytes: int = 0
    checked: int = 0
    wrong: int = 0
    first_wrong: str = ""  # whose means the values were, and the report, where some were wrong first
    operations_at_loss: int | None = None  # when the last rank was lost
    resident_early: int = 0  # the least when all was quiet, in the first half of the rotation of faults ...
    resident_late: int = 0  # ... and in the second
    longest_silence: float = 0.0
    drift: float | None = None  # of a replica from the others, at the end; None: nothing was trained
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


@dataclass
class Chapter:
    """From the forming of a group to its end."""

    ending: str
    victim: int
    ranks: list[RankStory]
    failure: str | None = None
    kind: str = "all-reduce"

    def problems(self) -> list[str]:
        """What must not be; empty when all is well."""
        found = [] if self.failure is None else [self.failure]
        for story in self.ranks:
            name = f"rank {story.rank}"
            if story.wrong:
                found.append(f"{name}: {story.wrong} wrong values; first: {story.first_wrong or 'unknown'}")
            if story.grows:
                found.append(f"{name}: memory grew by {story.growth:.1%}")
            if story.rank == self.victim:
                continue
            if story.ended is not None:
                found.append(f"{name} ended early: {story.ended}")
            if story.drift is not None and not story.drift <= _MOST_DRIFT:
                found.append(f"{name}: its replica is {story.drift:.1%} away from the others")
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
