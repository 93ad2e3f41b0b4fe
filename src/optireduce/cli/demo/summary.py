"""What a training run came to, and how far two runs are apart. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from ..bench.statistics import percentile
from .plan import RankDone, StepDone

# The first steps set up connections, memory and DDP's buckets.
_WARMUP_STEPS = 2


@dataclass(frozen=True)
class Outcome:
    """One backend's run."""

    backend: str
    steps: int
    p50: float  # seconds a step
    p99: float
    waiting_share: float  # of the step time, spent waiting for gradients that were already computed
    held_out_loss: float
    total_seconds: float
    parameters: npt.NDArray[np.float32]  # of rank 0
    replica_difference: float  # between rank 0 and any other, relative to the largest parameter; 0: same bits


def summarize(
    backend: str, steps: Sequence[StepDone], ranks: Sequence[RankDone], total_seconds: float
) -> Outcome:
    """The figures of one run. The first steps count only when there are no others."""
    counted = steps[_WARMUP_STEPS:] or steps
    seconds = [step.seconds for step in counted]
    first = min(ranks, key=lambda done: done.rank)
    assert first.held_out_loss is not None
    parameters = np.frombuffer(first.parameters, np.float32)
    others = [np.frombuffer(done.parameters, np.float32) for done in ranks]
    return Outcome(
        backend=backend,
        steps=len(steps),
        p50=median(seconds),
        p99=percentile(seconds, 0.99),
        waiting_share=sum(step.waiting_seconds for step in counted) / sum(seconds),
        held_out_loss=first.held_out_loss,
        total_seconds=total_seconds,
        parameters=parameters,
        replica_difference=max(relative_difference(parameters, other) for other in others),
    )


def relative_difference(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """The largest difference of two parameters, relative to the largest parameter.

    Relative to the parameter itself it would say nothing: those near zero differ by many times their size.
    """
    largest = float(np.abs(a).max())
    return float(np.abs(a - b).max()) / (largest or 1.0)
