"""What a run is told. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RANK_MODULE = "optireduce.trials.returns.rank"


@dataclass(frozen=True)
class ReturnPlan:
    """One run of a byte transformer with AdamW and a learning rate schedule."""

    steps: int
    store: str  # where the ranks meet, "host:port"
    step_seconds: float = 0.05  # a step computes at least so long
    batch: int = 2
    learning_rate: float = 1e-3
    held_out_batches: int = 16
    seed: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config
