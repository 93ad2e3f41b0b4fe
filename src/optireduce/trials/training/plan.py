"""What a training run is told; everything a rank has to know fits in a line of JSON. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config


@dataclass(frozen=True)
class Seat:
    """One rank's place in a run."""

    plan: TrainingPlan
    rank: int
    size: int
    interface: str
    folder: str  # shared by all ranks: where they meet, and where their logs and parameters go

    def path(self, name: str) -> Path:
        """A file in the folder."""
        return Path(self.folder) / name

    def to_json(self) -> str:
        """For the command line of the rank's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Seat:
        """What to_json wrote."""
        values = json.loads(text)
        return cls(plan=TrainingPlan(**values.pop("plan")), **values)
