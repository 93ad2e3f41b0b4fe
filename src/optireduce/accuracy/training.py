"""One run: a task, trained by eight replicas whose gradients are averaged in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

import torch

from .replicas import Replicas
from .strategies import Loss, Strategy
from .task import Task
from .transport import transport_for

RANKS = 8
MEASURE_STEPS = 10  # replicas are compared every so many steps

_FINAL_EVALUATIONS = 5  # of the loss, at the last measurements; their mean is the result
_RAMP_STEPS = 20
_CONSTANT_SHARE = 0.1  # of all steps, before the learning rate falls
_LAST_RATE_SHARE = 0.02

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Case:
    """What one run is to be."""

    task: Task
    strategy: Strategy
    loss: Loss | None
    """None: nothing is lost, for the exact strategy."""
    seed: int
    steps: int


@dataclass
class Run:
    """What one run has shown."""

    losses: list[float] = field(default_factory=list)
    """At the last measurements."""
    score: float | None = None
    apart: list[float] = field(default_factory=list)
    """The replicas' distance from their mean, relative to it, every ``MEASURE_STEPS`` steps."""
    equal: bool = True
    """Whether all replicas had the same bits whenever they were compared."""
    lost_share: float = 0.0

    @property
    def final_loss(self) -> float:
        """The mean over the last evaluations."""
        return fmean(self.losses)


def train(case: Case, advance: Advance | None = None) -> Run:
    """Train from the beginning; ``advance(steps)`` is called now and then."""
    task, steps = case.task, case.steps
    torch.set_num_threads(task.threads)
    replicas = Replicas(task, RANKS, case.seed)
    transport = transport_for(case.strategy, case.loss, RANKS, task.payload_bytes, case.seed)
    generators = [torch.Generator().manual_seed(case.seed * 1000 + rank) for rank in range(RANKS)]
    run = Run()
    for step in range(steps):
        gradients = replicas.gradients([task.draw(generator) for generator in generators])
        transport.average(gradients.numpy(), step)
        replicas.update(gradients, task.learning_rate * _rate_share(step, steps))
        left = steps - 1 - step
        if left % MEASURE_STEPS == 0:
            run.apart.append(replicas.apart())
            run.equal = run.equal and replicas.equal()
            if left < _FINAL_EVALUATIONS * MEASURE_STEPS:
                run.losses.append(replicas.loss())
            if advance is not None:
                advance(MEASURE_STEPS)
    run.score = replicas.score()
    run.lost_share = transport.lost_share()
    return run


def _rate_share(step: int, steps: int) -> float:
    """Of the full learning rate: a ramp, then constant, then a line down."""
    ramp = min(1.0, (step + 1) / _RAMP_STEPS)
    left = (steps - step) / (steps * (1 - _CONSTANT_SHARE))
    return min(ramp, max(_LAST_RATE_SHARE, left))
