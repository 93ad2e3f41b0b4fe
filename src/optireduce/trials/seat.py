"""One rank's place in a run that trains with torch. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .places import Place

P = TypeVar("P")


@dataclass(frozen=True)
class Seat(Generic[P]):
    """Everything a rank has to know; it fits in a line of JSON."""

    plan: P  # a dataclass
    rank: int
    size: int
    interface: str
    folder: str  # shared by all ranks: where they meet, and where their files go

    def path(self, name: str) -> Path:
        """A file in the folder."""
        return Path(self.folder) / name

    def to_json(self) -> str:
        """For the command line of the rank's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, plan: Callable[..., P]) -> Seat[P]:
        """What to_json wrote of a seat with such a plan."""
        values = json.loads(text)
        return cls(plan=plan(**values.pop("plan")), **values)


def seats(plan: P, place: Place, folder: str) -> list[str]:
    """Of all ranks, for their command lines."""
    size = len(place.addresses)
    return [Seat(plan, rank, size, place.interface, folder).to_json() for rank in range(size)]
