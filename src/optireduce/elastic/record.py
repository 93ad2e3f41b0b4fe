"""What a restarted process must know to join its group: one JSON object in the job's store.

The members hold the truth, the store only a copy. Among two entries of a rank, the one of the higher
incarnation is the valid one.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any

from ..auth import SECRET_BYTES

MOST_RANKS = 64  # of a group with views
_MOST_PORT = 65_535
_MOST_INCARNATION = 2**32 - 1
_MOST_BYTES = 2**31
_MOST_TEXT = 256


@dataclass(frozen=True)
class Entry:
    """Where one rank is reached."""

    incarnation: int
    """Which process of this rank it is, counted from 0."""
    address: str
    ports: tuple[int, ...]
    """UDP, for each rank; 0 for itself."""
    grant_bytes: int
    """What a peer may have unanswered towards it."""
    door: int
    """The TCP port of its snapshot service."""

    def to_json(self) -> dict[str, Any]:
        """As text holds it."""
        return dataclasses.asdict(self) | {"ports": list(self.ports)}

    @classmethod
    def of(cls, found: Any, rank: int, size: int) -> Entry:
        """ValueError: it is not the entry of this rank in a group of this size."""
        fields = _object(found, f"the entry of rank {rank}")
        ports = _list(fields, "ports", size)
        address = str(ipaddress.ip_address(_text(fields, "address")))
        return cls(
            _number(fields, "incarnation", 0, _MOST_INCARNATION),
            address,
            tuple(_in_range(port, "ports", int(n != rank), _MOST_PORT) for n, port in enumerate(ports)),
            _number(fields, "grant_bytes", 1, _MOST_BYTES),
            _number(fields, "door", 1, _MOST_PORT),
        )


@dataclass(frozen=True)
class Record:
    """A running group."""

    session: str
    """Another one for every group that formed."""
    version: str
    settings: dict[str, Any]
    """Those that must be the same on every rank."""
    secret: bytes = field(repr=False)
    seed: int
    hosts: int
    """When the group formed: it decided on authentication and forms with it."""
    mtu: int
    ranks: tuple[Entry, ...]
    rows: tuple[tuple[int, ...], ...] = ()
    """Of a grid, when the group formed; empty: it is flat."""

    @property
    def size(self) -> int:
        """Of the group."""
        return len(self.ranks)

    def to_json(self) -> dict[str, Any]:
        """As text holds it."""
        return {
            "session": self.session,
            "version": self.version,
            "settings": self.settings,
            "secret": self.secret.hex(),
            "seed": f"{self.seed:x}",  # JSON numbers are not exact to 64 bits everywhere
            "hosts": self.hosts,
            "mtu": self.mtu,
            "ranks": [entry.to_json() for entry in self.ranks],
            "rows": [list(row) for row in self.rows],
        }

    @classmethod
    def of(cls, found: Any) -> Record:
        """ValueError: it is not what to_json() makes."""
        fields = _object(found, "the record of the group")
        ranks = _list(fields, "ranks", None)
        secret = bytes.fromhex(_text(fields, "secret"))
        if len(secret) != SECRET_BYTES or not 1 <= len(ranks) <= MOST_RANKS:
            raise ValueError(f"a secret of {len(secret)} bytes and {len(ranks)} ranks are no group")
        return cls(
            _text(fields, "session"),
            _text(fields, "version"),
            _object(fields.get("settings"), "settings"),
            secret,
            _in_range(int(_text(fields, "seed"), 16), "seed", 0, 2**64 - 1),
            _number(fields, "hosts", 1, MOST_RANKS),
            _number(fields, "mtu", 1, _MOST_PORT + 1),
            tuple(Entry.of(entry, rank, len(ranks)) for rank, entry in enumerate(ranks)),
            _rows(_list(fields, "rows", None), len(ranks)),
        )

    def with_entry(self, rank: int, entry: Entry) -> Record:
        """The same group, in which this rank is another process."""
        ranks = (*self.ranks[:rank], entry, *self.ranks[rank + 1 :])
        return dataclasses.replace(self, ranks=ranks)

    def newer_in(self, other: Record) -> dict[int, Entry]:
        """The ranks of which the other record knows a later process. None of another group's."""
        if (other.session, other.size) != (self.session, self.size):
            return {}
        pairs = zip(self.ranks, other.ranks, strict=True)
        return {n: new for n, (old, new) in enumerate(pairs) if new.incarnation > old.incarnation}

    def joined(self, other: Record) -> Record:
        """With what the other one knows better."""
        merged = self
        for rank, entry in self.newer_in(other).items():
            merged = merged.with_entry(rank, entry)
        return merged


def parsed(raw: bytes) -> Any:
    """JSON; ValueError says that it is none."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("not JSON that we write: too deep") from None


def _rows(rows: list[Any], size: int) -> tuple[tuple[int, ...], ...]:
    """Of a grid in which every rank stands once; of a flat group none."""
    if not all(isinstance(row, list) for row in rows):
        raise ValueError("rows is not a list of lists")
    found = tuple(tuple(_in_range(rank, "rows", 0, size - 1) for rank in row) for row in rows)
    ranks = sorted(rank for row in found for rank in row)
    if found and (ranks != list(range(size)) or len({len(row) for row in found}) != 1):
        raise ValueError("rows are not equally long, or do not name every rank once")
    return found


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not an object")
    return found


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        raise ValueError(f"{name} is not a text of at most {_MOST_TEXT} characters")
    return value


def _number(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    return _in_range(fields.get(name), name, least, most)


def _in_range(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is not an integer from {least} to {most}")
    return value


def _list(fields: dict[str, Any], name: str, size: int | None) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or (size is not None and len(value) != size):
        raise ValueError(f"{name} is not a list" + ("" if size is None else f" of {size}"))
    return value
