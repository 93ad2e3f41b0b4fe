"""One run, and what it came to."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import median
from typing import Any, Literal

from ..places import Place
from ..ranks import Ranks
from ..seat import seats
from .plan import RANK_MODULE, ReturnPlan

How = Literal["none", "stopped", "killed"]
HOW: dict[str, How] = {"none": "none", "stopped": "stopped", "killed": "killed"}

_TICK_SECONDS = 0.01
_FIRST_STEPS = 5  # they set up connections, memory and DDP's buckets


@dataclass
class Returned:
    """What the ranks told. Times are of the clock that all of them share."""

    victim: int
    steps: dict[int, list[dict[str, Any]]]  # by rank
    finals: dict[int, dict[str, Any]] = field(default_factory=dict)
    gone: float = nan  # when the rank was stopped or killed
    back: float = nan  # when it was continued; of a new process, when its loop began

    def usual_seconds(self) -> float:
        """The median step of the others before the rank was gone."""
        return median(_seconds(each) for each in self._of_others() if each["end"] < self.gone)

    def longest_seconds(self) -> float:
        """The longest step of the others from then on, while they went on with it or waited for it."""
        return max(_seconds(each) for each in self._of_others() if each["end"] >= self.gone)

    def steps_until_member(self) -> int | None:
        """The steps that the rank began after it was back until one that it made as a member; None: none."""
        after = [each for each in self.steps[self.victim] if each["end"] >= self.back]
        return next(
            (made for made, each in enumerate(after, 1) if self.victim in each["members"]),
            None,
        )

    def equal(self) -> bool:
        """Whether all ranks ended with the same parameters, optimizer state and schedule."""
        return (
            len(self.finals) == len(self.steps)
            and len({each["digest"] for each in self.finals.values()}) == 1
        )

    def loss(self) -> float:
        """On held-out text, at the end."""
        return min((float(each["loss"]) for each in self.finals.values()), default=nan)

    def _of_others(self) -> list[dict[str, Any]]:
        return [
            each for rank, steps in self.steps.items() if rank != self.victim for each in steps[_FIRST_STEPS:]
        ]


def run_return(
    place: Place,
    plan: ReturnPlan,
    how: How,
    *,
    victim: int,
    at_step: int,
    seconds: float,
    advance: Callable[[int], None] = lambda step: None,
) -> Returned:
    """Train. When rank 0 has made ``at_step``, the victim is gone for so many seconds."""
    size = len(place.addresses)
    found = Returned(victim, {rank: [] for rank in range(size)})
    came_back = False
    with (
        tempfile.TemporaryDirectory(prefix="optireduce-returns-") as folder,
        Ranks(place, RANK_MODULE, seats(plan, place, folder)) as ranks,
    ):
        for told in ranks.records(_TICK_SECONDS):
            if not came_back and time.monotonic() >= found.gone + seconds:
                came_back = True
                _bring_back(ranks, found, how)
            if told is None:
                continue
            rank, record = told
            if record["kind"] == "step":
                found.steps[rank].append(record)
                if rank == (victim + 1) % size:
                    advance(record["step"])
                    if how != "none" and isnan(found.gone) and record["step"] >= at_step:
                        found.gone = time.monotonic()
                        _take_away(ranks, victim, how)
            elif record["kind"] == "begun" and rank == victim and came_back:
                found.back = record["at"]
            elif record["kind"] == "final":
                found.finals[rank] = record
    return found


def _take_away(ranks: Ranks, victim: int, how: How) -> None:
    if how == "stopped":
        ranks.processes[victim].send_signal(signal.SIGSTOP)
    else:
        ranks.kill(victim)


def _bring_back(ranks: Ranks, found: Returned, how: How) -> None:
    if how == "stopped":
        found.back = time.monotonic()
        ranks.processes[found.victim].send_signal(signal.SIGCONT)
    else:
        ranks.start_again(found.victim)


def _seconds(step: dict[str, Any]) -> float:
    return float(step["end"] - step["begin"])
