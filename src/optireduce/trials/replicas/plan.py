"""What a run is told. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...lab import ON_TIME, Lateness

GLOO, OURS = "gloo", "optireduce"
RANK_MODULE = "optireduce.trials.replicas.rank"


@dataclass(frozen=True)
class ReplicaPlan:
    """One run. Every value of a counter among the parameters has a gradient of -1: with SGD it counts the
    steps that reached it."""

    steps: int
    system: str = OURS
    values: int = 1 << 16  # of the counter
    transformer: bool = False  # whether a byte transformer learns beside it, with AdamW
    checks: int = 8  # how often bits are compared
    step_seconds: float = 0.0  # a step computes at least so long
    late: Lateness = ON_TIME
    naps: Mapping[str, float] = field(default_factory=dict)  # rank 0's process sleeps: step and seconds
    seed: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config

    def is_checked(self, step: int) -> bool:
        """Whether bits are compared after this step."""
        return (step + 1) % max(1, self.steps // self.checks) == 0

    def delay_seconds(self, rank: int, ranks: int, step: int) -> float:
        """How long this rank's process sleeps before this step computes."""
        nap = self.naps.get(str(step), 0.0) if rank == 0 else 0.0
        return nap + self.late.delay(self.seed, rank, ranks, step)
