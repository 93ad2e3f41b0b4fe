"""What one run does; everything a rank has to know fits in a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

GLOO = "gloo"
OURS = "optireduce"


@dataclass(frozen=True)
class System:
    """One competitor: Gloo, or optireduce with certain settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config

    @property
    def is_gloo(self) -> bool:
        """Whether it is the one to compare with."""
        return self.name == GLOO


@dataclass(frozen=True)
class Plan:
    """One run. Sizes in bytes."""

    systems: tuple[System, ...]
    hosts: int
    size: int
    iterations: int  # timed operations of each system
    block: int  # operations of one system in a row
    warmup: int  # operations of each optireduce system before them
    gloo_warmup: int = 3

    def warmup_of(self, system: System) -> int:
        """Operations whose times do not count: buffers, connections, and the bounds that ours learns."""
        return self.gloo_warmup if system.is_gloo else self.warmup

    def rounds(self) -> int:
        """How often the systems take turns."""
        return -(-self.iterations // self.block)

    def operations_in(self, round_index: int) -> int:
        """The last round may be shorter."""
        return min(self.block, self.iterations - round_index * self.block)


@dataclass(frozen=True)
class Seat:
    """One rank's place in a run."""

    plan: Plan
    rank: int
    addresses: tuple[str, ...]
    interface: str
    faulty: bool  # a rank will be stopped or killed: no gate holds the others, and there is no Gloo

    def to_json(self) -> str:
        """For the command line of the rank's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Seat:
        """What to_json wrote."""
        values = json.loads(text)
        plan = values.pop("plan")
        systems = tuple(System(**system) for system in plan.pop("systems"))
        values["addresses"] = tuple(values["addresses"])
        return cls(plan=Plan(systems=systems, **plan), **values)
