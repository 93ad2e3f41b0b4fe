"""One run, with events at certain steps, from its start to all that the ranks told."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..places import Place
from ..ranks import Ranks
from ..seat import seats
from .outcome import RankStory, Run
from .plan import RANK_MODULE, ReplicaPlan

_TICK_SECONDS = 0.02

Act = Callable[[Ranks], None]


@dataclass(frozen=True)
class Event:
    """Done so long after rank 0 has made a step."""

    name: str
    step: int
    act: Act
    after_seconds: float = 0.0


def run_replicas(
    place: Place,
    plan: ReplicaPlan,
    *,
    begin: Callable[[], None] = lambda: None,
    events: Sequence[Event] = (),
    may_die: AbstractSet[int] = frozenset(),
    advance: Callable[[int], None] = lambda step: None,
) -> Run:
    """Train. ``begin`` is called when all ranks are ready, ``advance`` with each step of rank 0."""
    run = Run(plan.steps, [RankStory(rank) for rank in range(len(place.addresses))])
    waiting, due = list(events), list[tuple[float, Event]]()
    with (
        tempfile.TemporaryDirectory(prefix="optireduce-replicas-") as folder,
        Ranks(place, RANK_MODULE, seats(plan, place, folder)) as ranks,
    ):
        for told in ranks.records(_TICK_SECONDS, may_die, begin=begin):
            due = _act(due, ranks, run)
            if told is None:
                continue
            rank, record = told
            run.ranks[rank].note(record)
            if rank == 0 and record["kind"] == "step":
                advance(record["step"])
                now = time.monotonic()
                due += [
                    (now + event.after_seconds, event) for event in waiting if event.step <= record["step"]
                ]
                waiting = [event for event in waiting if event.step > record["step"]]
    return run


def _act(due: list[tuple[float, Event]], ranks: Ranks, run: Run) -> list[tuple[float, Event]]:
    """Do what it is time for; the rest."""
    left = []
    for moment, event in due:
        if time.monotonic() < moment:
            left.append((moment, event))
        else:
            event.act(ranks)
            run.moments[event.name] = time.monotonic()
    return left
