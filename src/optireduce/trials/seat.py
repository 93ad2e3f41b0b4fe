"""One rank's place in a run that trains with torch. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

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
    def from_json(cls, text: str, plan: type[P]) -> Seat[P]:
        """What to_json wrote of a seat with such a plan."""
        values = json.loads(text)
        return cls(plan=_made(plan, values.pop("plan")), **values)


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass whose fields may be dataclasses; these have a default."""
    parts = {field.name: type(field.default) for field in fields(kind) if is_dataclass(field.default)}
    return kind(
        **values | {name: _made(part, values[name]) for name, part in parts.items() if name in values}
    )


def seats(plan: P, place: Place, folder: str) -> list[str]:
    """Of all ranks, for their command lines."""
    size = len(place.addresses)
    return [Seat(plan, rank, size, place.interface, folder).to_json() for rank in range(size)]
