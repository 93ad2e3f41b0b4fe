"""What a run came to. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isnan, nan
from statistics import fmean, median
from typing import Any

_FIRST_STEPS = 5  # they set up connections, memory and DDP's buckets
_LOST_STEPS = 5  # of a removed rank at most: contributions in flight, and residuals

Step = dict[str, Any]  # what one rank tells of one step; times of the clock that all ranks share


@dataclass
class RankStory:
    """Everything one rank told."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    checks: dict[int, str] = field(default_factory=dict)  # digests by step
    digest: str | None = None  # after the flush; None: it did not get there
    least: float = nan  # of the counter, after the flush
    most: float = nan
    failed: Step | None = None

    def note(self, record: dict[str, Any]) -> None:
        """Keep one record."""
        if record["kind"] == "step":
            self.steps.append(record)
        elif record["kind"] == "check":
            self.checks[record["step"]] = record["digest"]
        elif record["kind"] == "failed":
            self.failed = record
        elif record["kind"] == "final":
            self.digest, self.least, self.most = record["digest"], record["least"], record["most"]


@dataclass
class Run:
    """All ranks, and when events happened."""

    planned_steps: int
    ranks: list[RankStory]
    moments: dict[str, float] = field(default_factory=dict)

    def finished(self) -> list[RankStory]:
        """Ranks that trained to the end and flushed."""
        return [story for story in self.ranks if story.digest is not None]

    def checks(self) -> list[tuple[int, int, bool]]:
        """The step, how many ranks told a digest, and whether it was the same; last, after the flush."""
        steps = sorted({step for story in self.ranks for step in story.checks})
        found = [_compared(step, [story.checks.get(step) for story in self.ranks]) for step in steps]
        return [*found, _compared(self.planned_steps, [story.digest for story in self.ranks])]

    def unequal(self) -> list[int]:
        """Steps after which ranks differed."""
        return [step for step, _, equal in self.checks() if not equal]

    def deviation(self) -> float:
        """How far the counter's values are from the number of steps, after the flush, at most; in steps."""
        ends = [value for story in self.finished() for value in (story.least, story.most)]
        if not ends or any(isnan(value) for value in ends):
            return nan
        return max(abs(value - self.planned_steps) for value in ends)

    def allowed_deviation(self) -> float:
        """Nothing, or the own samples of removed ranks: those in flight when they were removed and, of ranks
        that returned, those of the time out of the view."""
        changes = len(self.views()) - 1
        if not changes:
            return 0.0
        returned = sum(self.out_of_view(rank) for rank in self.last_members())
        fewest = min(len(step["members"]) for step in self._told_views())
        return (returned + _LOST_STEPS * changes) / fewest

    def out_of_view(self, rank: int) -> int:
        """Steps in which a rank was no member, as any other tells that trained to the end."""
        told = next((story.steps for story in self.finished() if story.rank != rank), [])
        return sum("view" in step and rank not in step["members"] for step in told)

    def views(self) -> list[int]:
        """Numbers of all views in which a rank ended a step."""
        return sorted({step["view"] for step in self._told_views()})

    def removals(self) -> int:
        """How often ranks were removed from the view."""
        members = {int(step["view"]): set(step["members"]) for step in self._told_views()}
        views = [set(range(len(self.ranks))), *(members[view] for view in sorted(members))]
        return sum(len(before - after) for before, after in pairwise(views))

    def last_members(self) -> list[int]:
        """Of the newest view."""
        told = self._told_views()
        return list(max(told, key=lambda step: int(step["view"]))["members"]) if told else []

    def missing_mean(self) -> float:
        """Share of the contributions that missed their deadline."""
        shares = [step["missing"] for step in self._told_views()]
        return fmean(shares) if shares else 0.0

    def wall_seconds(self) -> float:
        """From the end of the first steps to the end of the last, of the last rank."""
        begin = max(story.steps[_FIRST_STEPS - 1]["end"] for story in self.finished())
        return float(max(story.steps[-1]["end"] for story in self.finished()) - begin)

    def usual_seconds(self, before: float) -> float:
        """The median step of all ranks until then."""
        return median(_seconds(step) for step in self._steps() if step["end"] < before)

    def longest_seconds(self, after: float, but: Sequence[int] = ()) -> float:
        """The longest step of all other ranks that ended later, failed ones included."""
        failed = [story.failed for story in self.ranks if story.failed is not None and story.rank not in but]
        steps = [*self._steps(but), *failed]
        return max((_seconds(step) for step in steps if step["end"] >= after), default=nan)

    def steps_between(self, rank: int, begin: float, end: float) -> int:
        """Steps that a rank both began and ended in this time."""
        return sum(begin <= step["begin"] and step["end"] <= end for step in self.ranks[rank].steps)

    def _steps(self, but: Sequence[int] = ()) -> list[Step]:
        return [
            step
            for story in self.ranks
            if story.rank not in but
            for step in story.steps
            if step["step"] >= _FIRST_STEPS
        ]

    def _told_views(self) -> list[Step]:
        return [step for story in self.ranks for step in story.steps if "view" in step]


def _compared(step: int, digests: Sequence[str | None]) -> tuple[int, int, bool]:
    known = [digest for digest in digests if digest is not None]
    return step, len(known), len(set(known)) <= 1


def _seconds(step: Step) -> float:
    return float(step["end"] - step["begin"])
