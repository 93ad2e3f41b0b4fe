"""The chapters of a soak, from the forming of a group to its end without one rank."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from ...lab import Lab
from ..ranks import RankFailed, Ranks, Record
from .faults import Fault, end_fault, ending, rotation
from .outcome import Chapter, Outcome, RankStory
from .plan import Kind, SoakPlan, seats

_TICK_SECONDS = 0.1
_FORMING_SECONDS = 180.0  # four ranks import torch first: 90 s were not enough on a busy machine
# Large blocks go back to the kernel when they are freed, always: resident memory then says what is held.
_RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "131072"}
_MOST_SILENCE_SECONDS = 45.0  # more than an operation's own limit, and a chapter's stops

Advance = Callable[[str, float], None]


def run_soak(lab: Lab, plan: SoakPlan, advance: Advance = lambda note, seconds: None) -> Outcome:
    """Chapter after chapter. ``advance`` is told what goes on, and how many seconds have passed of each."""
    outcome = Outcome()
    for number in range(plan.chapters):
        outcome.chapters.append(run_chapter(lab, plan, plan.kind(number), ending(number), advance))
    return outcome


def run_chapter(
    lab: Lab, plan: SoakPlan, kind: Kind, last: Fault, advance: Advance = lambda note, seconds: None
) -> Chapter:
    """One of them, which ends with the fault ``last``."""
    os.environ.update(_RETURN_MEMORY)
    return _Telling(lab, plan, kind, last, advance).tell()


class _Telling:
    def __init__(self, lab: Lab, plan: SoakPlan, kind: Kind, last: Fault, advance: Advance) -> None:
        self._lab, self._plan, self._kind, self._advance = lab, plan, kind, advance
        stories = [RankStory(rank, plan.noise_bytes) for rank in range(plan.hosts)]
        self._chapter = Chapter(last.name, plan.hosts - 1, stories, kind=kind.name)
        self._heard = [time.monotonic()] * plan.hosts
        self._done: set[int] = set()
        self._began: float | None = None  # None: the group is still forming
        self._phase = -1
        self._rotation = rotation(firewall=not plan.drop)
        rounds = plan.rounds(len(self._rotation))
        self._warm = len(self._rotation) * rounds // 2  # phases in which memory may grow
        self._phases = [*self._rotation * rounds, last]

    def tell(self) -> Chapter:
        with tempfile.TemporaryDirectory(prefix="optireduce-soak-") as folder:
            places = seats(self._plan, self._lab.addresses, self._lab.interface, folder)
            try:
                with Ranks(self._lab, self._kind.module, places, python=self._plan.python) as ranks:
                    self._follow(ranks)
            except RankFailed as error:
                self._chapter.failure = str(error)
            finally:
                end_fault(self._lab)
        return self._chapter

    def _follow(self, ranks: Ranks) -> None:
        created = time.monotonic()
        for told in ranks.records(_TICK_SECONDS, {self._chapter.victim}, begin=self._begin):
            if told is not None:
                self._note(*told)
            if self._began is not None:
                self._move_on(time.monotonic() - self._began)
            elif time.monotonic() - created > _FORMING_SECONDS:
                raise RankFailed(f"the group did not form within {_FORMING_SECONDS:.0f} s")
            self._look_for_hangs()
            if self._began is not None and len(self._done | {self._chapter.victim}) == self._plan.hosts:
                return  # the lost rank may hold on to its group for longer; nobody waits for it

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._heard = [self._began] * self._plan.hosts  # the first waited for the last

    def _move_on(self, passed: float) -> None:
        """Begin the next fault when its time has come."""
        last = len(self._phases) - 1
        due = min(int(passed / self._plan.rotating_seconds * last), last)
        self._advance(self._phases[max(self._phase, 0)].name, passed)
        if due == self._phase:
            return
        self._phase = due
        end_fault(self._lab)
        self._phases[due].begin(self._lab)
        if due == last:
            for story in self._chapter.ranks:
                story.operations_at_loss = story.operations

    def _note(self, rank: int, record: Record) -> None:
        story = self._chapter.ranks[rank]
        now = time.monotonic()
        if self._began is not None:
            story.longest_silence = max(story.longest_silence, now - self._heard[rank])
        self._heard[rank] = now
        if record["kind"] == "progress":
            self._note_progress(story, record)
        elif record["kind"] == "ended":
            story.ended = record["error"]
        elif record["kind"] == "ledger":
            for name in ("deviation", "allowed", "view_changes", "out_of_view"):
                setattr(story, name, record[name])
        elif record["kind"] == "done":
            self._done.add(rank)

    def _note_progress(self, story: RankStory, record: Record) -> None:
        for name in ("operations", "bytes", "missing"):
            setattr(story, name, record[name])
        for step, checksum in record["checks"]:
            self._chapter.checks.add(story.rank, step, checksum)
        # While a host stands still the others keep decisions for it, within a limit: that is no growth. What
        # counts is what they hold when all is quiet.
        quiet = self._phases[self._phase] is self._rotation[0]
        if not quiet or (self._phase == 0 and self._warm > len(self._rotation)):
            return
        name = "resident_early" if self._phase < self._warm else "resident_late"
        setattr(story, name, min(getattr(story, name) or record["resident"], record["resident"]))

    def _look_for_hangs(self) -> None:
        now = time.monotonic()
        for rank, heard in enumerate(self._heard):
            waits = self._began is None or rank in self._done or rank == self._chapter.victim
            if not waits and now - heard > _MOST_SILENCE_SECONDS:
                raise RankFailed(f"rank {rank} hangs: it told nothing for {now - heard:.0f} s")
