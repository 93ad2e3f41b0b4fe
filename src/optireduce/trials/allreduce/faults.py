"""A rank that is stopped or killed in the middle of training, and what the others notice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ...lab import Lab
from ..ranks import Ranks
from .plan import RANK_MODULE, Plan, seats

STOPPED_SECONDS = 3.0
_TICK_SECONDS = 0.05
_IN_STEP = 1  # steps that ranks may be apart at any moment

Step = dict[str, Any]  # what one rank tells of one step; times of the clock that all ranks share


@dataclass
class Incident:
    """What happened, and every step of every rank."""

    victim: int
    steps: list[list[Step]]
    fault_at: float = 0.0
    resumed_at: float | None = None  # None: it stays dead
    failures: dict[int, Step] = field(default_factory=dict)  # the last step of ranks that gave up
    counters: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Aftermath:
    """The figures of an incident. Times in seconds."""

    usual_step: float
    longest_step: float  # of the other ranks, from the fault on
    steps_of_others: int  # from the fault on, of the slowest of them
    missing_mean: float  # share of the contributions that missed the others' deadlines from the fault on
    members: tuple[int, ...]  # of the last view that the others told
    in_step_after: int | None  # steps that the others made from SIGCONT until the victim was with them
    made_up: int | None  # steps that the victim made in that time


def provoke(lab: Lab, plan: Plan, *, kill: bool, advance: Callable[[str, int], None]) -> Incident:
    """Train, stop or kill the last rank after a third of its steps, and train on."""
    incident = Incident(plan.hosts - 1, [[] for _ in range(plan.hosts)])
    dead = frozenset({incident.victim} if kill else ())
    with Ranks(lab, RANK_MODULE, seats(lab, plan, faulty=True)) as ranks:
        victim = ranks.processes[incident.victim]
        for told in ranks.records(_TICK_SECONDS, dead):
            if not kill and _is_over(incident):
                victim.send_signal(signal.SIGCONT)
                incident.resumed_at = time.monotonic()
            if told is None:
                continue
            rank, record = told
            _note(incident, rank, record)
            if rank == 0 and record["kind"] == "step":
                advance(f"step {record['step']}", 1)
            if _is_due(incident, plan, rank, record):
                victim.send_signal(signal.SIGKILL if kill else signal.SIGSTOP)
                incident.fault_at = time.monotonic()
    return incident


def _note(incident: Incident, rank: int, record: dict[str, Any]) -> None:
    if record["kind"] == "step":
        incident.steps[rank].append(record)
    elif record["kind"] == "failed":
        incident.failures[rank] = record
    elif record["kind"] == "counters":
        incident.counters.append(record["counters"])


def _is_due(incident: Incident, plan: Plan, rank: int, record: dict[str, Any]) -> bool:
    there = rank == incident.victim and record["kind"] == "step"
    return there and not incident.fault_at and record["step"] >= max(plan.iterations // 3, plan.warmup)


def _is_over(incident: Incident) -> bool:
    stopped = incident.fault_at > 0 and incident.resumed_at is None
    return stopped and time.monotonic() - incident.fault_at >= STOPPED_SECONDS


def aftermath(incident: Incident, warmup: int) -> Aftermath:
    """From the steps to the figures; the first ``warmup`` steps are not usual ones."""
    others = [steps for rank, steps in enumerate(incident.steps) if rank != incident.victim]
    before = [s for steps in others for s in steps if s["end"] < incident.fault_at and s["step"] >= warmup]
    after = [[s for s in steps if s["end"] >= incident.fault_at] for steps in others]
    flat = [step for steps in after for step in steps]
    failed = [step for rank, step in incident.failures.items() if rank != incident.victim]
    back = _back_in_step(incident, others)
    return Aftermath(
        usual_step=median(map(_seconds, before)) if before else float("nan"),
        longest_step=max(map(_seconds, [*flat, *failed]), default=float("nan")),
        steps_of_others=min(map(len, after)),
        missing_mean=fmean(step["missing_share"] for step in flat) if flat else 0.0,
        members=tuple(max(flat, key=lambda step: float(step["end"]))["members"]) if flat else (),
        in_step_after=back[0] if back else None,
        made_up=back[1] if back else None,
    )


def _back_in_step(incident: Incident, others: Sequence[Sequence[Step]]) -> tuple[int, int] | None:
    """Steps that the others and the victim made from SIGCONT until they were together again."""
    if incident.resumed_at is None:
        return None
    made = [step for step in incident.steps[incident.victim] if step["end"] >= incident.resumed_at]
    ahead_at_resume = _furthest(others, incident.resumed_at)
    for count, step in enumerate(made, start=1):
        ahead = _furthest(others, step["end"])
        if ahead - step["step"] <= _IN_STEP:
            return ahead - ahead_at_resume, count
    return None


def _furthest(others: Sequence[Sequence[Step]], moment: float) -> int:
    """The latest step that any of them had done by then."""
    return max((step["step"] for steps in others for step in steps if step["end"] <= moment), default=-1)


def _seconds(step: Step) -> float:
    return float(step["end"] - step["begin"])
