"""Training of eight virtual replicas (optireduce.accuracy) for the studies: many runs, means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from .sim_numbers import Summary, summary
from .study import Advance

EXACT, CARRY, PAPERS, HADAMARD = "exact", "carry", "papers", "papers+hadamard"  # of accuracy.strategies


@dataclass(frozen=True)
class Place:
    """What runs that differ only in their seed have in common."""

    task: str
    strategy: str
    pattern: str = ""
    share: float = 0.0
    """Of the packets, that miss the deadline; nothing for the exact strategy."""

    def __str__(self) -> str:
        lost = f" {self.pattern} {self.share:.1%}" if self.share else ""
        return f"{self.task} {self.strategy}{lost}"


@dataclass(frozen=True)
class Outcome:
    """One run."""

    place: Place
    seed: int
    loss: float
    """The final one, mean over the replicas."""
    score: float | None
    """Share of right answers, of tasks that have one."""
    lost_share: float
    """What was really lost, in steps with a deadline."""
    apart: float
    """How far apart replicas are at the end; 0: the same bits."""


def train_all(places: Sequence[Place], seeds: int, steps: int, advance: Advance) -> list[Outcome]:
    """Every place with every seed; advances by steps."""
    from ..accuracy.strategies import STRATEGIES, Loss, Pattern  # these load torch
    from ..accuracy.tasks import TASKS
    from ..accuracy.training import Case, train

    patterns: dict[str, Pattern] = {"random": "random", "tail": "tail", "bursts": "bursts"}
    # One thread: two that wait for each other spin, and results would depend on how many there are.
    tasks = {name: replace(TASKS[name](), threads=1) for name in sorted({place.task for place in places})}
    outcomes = []
    for place in places:
        loss = Loss(patterns[place.pattern], place.share) if place.pattern else None
        for seed in range(seeds):
            case = Case(tasks[place.task], STRATEGIES[place.strategy], loss, seed, steps)
            run = train(case, partial(advance, f"{place}, seed {seed}"))
            outcomes.append(Outcome(place, seed, run.final_loss, run.score, run.lost_share, run.apart[-1]))
    return outcomes


def losses(outcomes: Sequence[Outcome], place: Place) -> Summary:
    """Final losses over the seeds."""
    return summary([outcome.loss for outcome in outcomes if outcome.place == place])


def scores(outcomes: Sequence[Outcome], place: Place) -> Summary:
    """Scores over the seeds, for tasks that have one."""
    found = [outcome.score for outcome in outcomes if outcome.place == place]
    return summary([score for score in found if score is not None])


def lost_share(outcomes: Sequence[Outcome], place: Place) -> float:
    """What was really lost, on average."""
    return summary([outcome.lost_share for outcome in outcomes if outcome.place == place]).mean


def above(outcomes: Sequence[Outcome], place: Place, other: Place) -> Summary:
    """How much higher the final loss is than that of another place with the same seed."""
    theirs = {outcome.seed: outcome.loss for outcome in outcomes if outcome.place == other}
    return summary([o.loss - theirs[o.seed] for o in outcomes if o.place == place])
