"""What a training run of the demo is told, and what its ranks report. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingPlan:
    """Equal plans give equal data and equal initial parameters, whatever the backend."""

    steps: int
    batch: int = 8  # sequences a rank and step
    learning_rate: float = 1e-3
    seed: int = 1
    held_out_batches: int = 16


@dataclass(frozen=True)
class StepDone:
    """Rank 0 finished a step."""

    seconds: float
    waiting_seconds: float  # after the last local gradient was ready, until all were averaged
    loss: float


@dataclass(frozen=True)
class RankDone:
    """One rank finished training."""

    rank: int
    held_out_loss: float | None  # rank 0 only
    parameters: bytes  # float32, flat
