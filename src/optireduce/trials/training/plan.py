"""What a training run is told. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...lab import ON_TIME, Lateness

GLOO = "gloo"
RANK_MODULE = "optireduce.trials.training.rank"


@dataclass(frozen=True)
class TrainingPlan:
    """Equal plans give equal data and equal initial parameters, whatever the system."""

    system: str  # gloo, or optireduce in any mode
    steps: int
    batch: int = 2  # sequences a rank and step: the network, not two cores, should be what is slow
    learning_rate: float = 1e-3
    ramp_steps: int = 20  # the learning rate rises to its full value
    most_norm: float = 1.0  # of the gradient: without, one hard batch can throw a run off, with any backend
    seed: int = 1
    evaluate_every: int = 10  # steps between snapshots that are evaluated on held-out text
    held_out_batches: int = 16
    late: Lateness = ON_TIME
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config
