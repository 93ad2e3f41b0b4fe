"""What a rank of an elastic group knows about the processes of the others, and what it answers to those that
join. The engine and the snapshot service follow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .record import Entry, Record

_logger = logging.getLogger("optireduce")

Move = Callable[[int, Entry], None]
"""Tells the engine and the snapshot service where a rank's new process is."""


@dataclass
class Counts:
    """Of processes that wanted to join."""

    accepted: int = 0
    refused: int = 0


class Member:
    """Any thread may call it."""

    def __init__(self, rank: int, record: Record, standing: Callable[[], str], move: Move) -> None:
        self.rank = rank
        self.counts = Counts()
        self._record = record
        self._standing = standing
        self._move = move
        self._lock = threading.Lock()
        self._replaced = False
        # The ranks that know of this process. The first of a rank is known to those that formed the group.
        self._told: set[int] = set(range(record.size)) if not record.ranks[rank].incarnation else {rank}

    @property
    def record(self) -> Record:
        """What is known now."""
        with self._lock:
            return self._record

    @property
    def is_replaced(self) -> bool:
        """Whether a later process of this rank has joined."""
        return self._replaced

    def untold(self) -> list[int]:
        """Ranks that have not confirmed that they know of this process."""
        with self._lock:
            return [rank for rank in range(self._record.size) if rank not in self._told]

    def told(self, rank: int) -> None:
        """It has confirmed it."""
        with self._lock:
            self._told.add(rank)

    def about_group(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a process that asks whether this group runs."""
        return {"record": self.record.to_json(), "standing": self._standing()}

    def about_join(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a process of ``rank`` that joins: it is accepted if no later one is known. ValueError
        or KeyError: it is no such request."""
        try:
            session = request["session"]
            entry = Entry.of(request["entry"], rank, self.record.size)
            with self._lock:
                accepted = session == self._record.session and self._take(rank, entry)
                if accepted:
                    self._told.add(rank)  # it asked for this record, or gets it now
        except (KeyError, ValueError):
            self.counts.refused += 1
            raise
        self.counts.accepted += accepted
        self.counts.refused += not accepted
        return {"accepted": accepted, "record": self.record.to_json()}

    def learn(self, other: Record) -> None:
        """What another rank knows better."""
        with self._lock:
            for rank, entry in self._record.newer_in(other).items():
                if rank == self.rank:
                    self._replaced = True
                else:
                    self._take(rank, entry)

    def _take(self, rank: int, entry: Entry) -> bool:
        """Holding the lock. Also true for what is known already."""
        known = self._record.ranks[rank]
        if entry.incarnation < known.incarnation or rank == self.rank:
            return False
        if entry.incarnation == known.incarnation:
            return entry == known
        self._move(rank, entry)
        self._record = self._record.with_entry(rank, entry)
        _logger.warning(
            "rank %d was restarted: its process number %d is at %s", rank, entry.incarnation, entry.address
        )
        return True
