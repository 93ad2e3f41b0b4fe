"""What one run does; everything a rank has to know fits in a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from ...lab import Lab

GLOO = "gloo"
TAR_TCP = "tar-tcp"
MPI = "mpi"
PAPERS = "papers"
OURS = "optireduce"
MULTICAST = "multicast"
RANK_MODULE = "optireduce.trials.allreduce.rank"
_PAPERS_SETTINGS = {"delivery": "best-effort", "shuffle": False}


@dataclass(frozen=True)
class System:
    """One competitor: a baseline by its name, or optireduce with certain settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of optireduce.Config

    @property
    def is_ours(self) -> bool:
        """Whether optireduce's engine does it, in whatever mode."""
        return self.name not in (GLOO, TAR_TCP, MPI)


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System(GLOO),
        System(TAR_TCP),
        System(MPI),
        System(PAPERS, _PAPERS_SETTINGS),
        System(OURS),
        System(MULTICAST, {"multicast": "on"}),
    )
}


def mpi_is_installed() -> bool:
    """MPICH and mpi4py, as ``pip install 'optireduce[mpi]'`` brings them."""
    return find_spec("mpi4py") is not None and find_spec("mpi4py.MPI") is not None


@dataclass(frozen=True)
class Plan:
    """One run. Sizes in bytes."""

    systems: tuple[System, ...]
    hosts: int
    size: int
    iterations: int  # timed operations of each system
    block: int  # operations of one system in a row
    warmup: int  # operations of each optireduce system before them
    baseline_warmup: int = 3
    per_host: int = 1  # ranks

    @property
    def ranks(self) -> int:
        """Of the group. Those of a host follow each other."""
        return self.hosts * self.per_host

    def warmup_of(self, system: System) -> int:
        """Operations whose times do not count: buffers, connections, and the deadlines that ours learns."""
        return self.warmup if system.is_ours else self.baseline_warmup

    @property
    def needs_mpi(self) -> bool:
        """Whether ranks form an MPI world."""
        return any(system.name == MPI for system in self.systems)

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


def seats(lab: Lab, plan: Plan, *, faulty: bool = False) -> list[str]:
    """Of all ranks, for their command lines."""
    return [Seat(plan, rank, lab.addresses, lab.interface, faulty).to_json() for rank in range(plan.ranks)]
