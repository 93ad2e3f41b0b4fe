"""What a training run came to. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from ...page.quantiles import percentile

# The first steps set up connections, memory and DDP's buckets.
_FIRST_STEPS = 3


@dataclass(frozen=True)
class Step:
    """One step of rank 0. ``clock``: seconds from the start of training to its end."""

    step: int
    clock: float
    seconds: float
    waited: float  # after the last local gradient was ready, until all were averaged
    updating: float  # in the optimizer
    loss: float
    missing: float  # share of the contributions that missed the deadline
    timed_out: bool


@dataclass(frozen=True)
class HeldOut:
    """The loss on held-out text of the parameters at that moment."""

    step: int
    clock: float
    loss: float


@dataclass
class Outcome:
    """One run of one system."""

    system: str
    seed: int
    steps: list[Step] = field(default_factory=list)
    held_out: list[HeldOut] = field(default_factory=list)
    replica_difference: float | None = None
    """Between rank 0 and any other that lived, of the largest parameter; 0: equal. None: not known."""
    failure: str | None = None
    """Why it ended early."""

    @property
    def final_loss(self) -> float:
        """Held-out, of the last parameters that were evaluated."""
        return self.held_out[-1].loss if self.held_out else float("nan")

    @property
    def seconds(self) -> float:
        """Of training."""
        return self.steps[-1].clock if self.steps else float("nan")

    def step_seconds(self) -> list[float]:
        """The first steps count only when there are no others."""
        return [step.seconds for step in self.steps[_FIRST_STEPS:] or self.steps]

    def mean_step(self) -> float:
        """Seconds."""
        return fmean(self.step_seconds())

    def p50(self) -> float:
        """Of the step times, seconds."""
        return median(self.step_seconds())

    def p99(self) -> float:
        """Of the step times, seconds."""
        return percentile(self.step_seconds(), 0.99)

    def waiting_share(self) -> float:
        """Of the step time, spent waiting for gradients that were already computed."""
        counted = self.steps[_FIRST_STEPS:] or self.steps
        return sum(step.waited for step in counted) / sum(step.seconds for step in counted)

    def missing_mean(self) -> float:
        """Share of the contributions that missed their deadline."""
        return fmean(step.missing for step in self.steps) if self.steps else 0.0

    def timeouts(self) -> int:
        """Steps that a deadline ended."""
        return sum(step.timed_out for step in self.steps)


def seconds_to(held_out: Sequence[HeldOut], target: float) -> float | None:
    """When the held-out loss first fell to the target, between two evaluations in proportion; None: never."""
    before: HeldOut | None = None
    for now in held_out:
        if now.loss <= target:
            if before is None:
                return now.clock
            share = (before.loss - target) / (before.loss - now.loss)
            return before.clock + share * (now.clock - before.clock)
        before = now
    return None
