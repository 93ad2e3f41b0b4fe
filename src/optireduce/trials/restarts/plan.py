"""What is killed when; everything a rank has to know fits in a line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

RANK_MODULE = "optireduce.trials.restarts.rank"
WITNESS = 1  # never killed: its memory is looked at


@dataclass(frozen=True)
class RestartPlan:
    """Every so often one rank is killed, and started again a little later. All take turns but one."""

    hosts: int
    seconds: float
    every_seconds: float = 60.0
    away_seconds: float = 5.0
    step_seconds: float = 0.05  # that a rank computes
    values: int = 100_000
    python: str = sys.executable

    @property
    def victims(self) -> list[int]:
        """One for each kill, in order. The last one has time to return."""
        turns = [rank for rank in range(self.hosts - 1, -1, -1) if rank != WITNESS]
        return [turns[n % len(turns)] for n in range(max(1, int(self.seconds / self.every_seconds)))]


@dataclass(frozen=True)
class Seat:
    """One rank's place."""

    rank: int
    size: int
    store: str
    interface: str
    step_seconds: float
    values: int
    end: str
    """A file; when it is there, it says after which step training ends."""

    def to_json(self) -> str:
        """For the command line of the rank's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Seat:
        """What to_json wrote."""
        return cls(**json.loads(text))


def seats(plan: RestartPlan, addresses: Sequence[str], interface: str, port: int, end: str) -> list[str]:
    """Of all ranks, for their command lines."""
    store = f"{addresses[0]}:{port}"
    return [
        Seat(rank, plan.hosts, store, interface, plan.step_seconds, plan.values, end).to_json()
        for rank in range(plan.hosts)
    ]
