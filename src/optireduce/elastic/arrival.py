"""How a process that starts finds its group.

Two things may happen, and the process waits for whichever comes first:
- a new group forms, once every rank has a process that waits as this one does;
- a running group takes it in, if enough of its processes answer.
They exclude each other, because a process that trains does not wait. So nobody has to judge from the age of
a record whether its group still runs, and a job that is started again in full forms a new group.

Keys: ``invitation`` names rank 0's attempt to form a group, ``<attempt>/here/<rank>`` a process that waits,
``<attempt>/go`` the processes that form the group. ``record`` is the running group's, and
``<session>/finished/<rank>`` says that a rank of it has ended its training.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, ConnectError, GroupFinished, PeerError
from .board import Board, BoardAway, finished_key
from .record import Record

_ROUND_SECONDS = 0.1
_SURVEY_SECONDS = 1.0  # between two rounds of questions to a running group
_KEY_BYTES = 8

_logger = logging.getLogger("optireduce")


@dataclass(frozen=True)
class Survey:
    """What a running group answers to a process that wants to join."""

    record: Record
    """With what the ranks that answered know."""
    training: frozenset[int]
    """Ranks whose processes belong to the group."""
    twin: bool
    """Another process of our own rank answers as well."""


class Arrival:
    """One process on its way into its group."""

    def __init__(
        self,
        board: Board,
        rank: int,
        size: int,
        survey: Callable[[Record], Survey],
        patience_seconds: float,
    ) -> None:
        """``patience_seconds``: how long a finished job is given to be started again by other ranks."""
        self._board = board
        self._rank = rank
        self._size = size
        self._survey = survey
        self._patience_seconds = patience_seconds
        self._own = secrets.token_hex(_KEY_BYTES)
        self._attempt = ""
        self._is_there_in = ""  # the attempt in which we said so
        self._missing: list[int] = []
        self._trouble = "the store does not answer"
        self._group_trouble = ""
        self._odd_size_at: float | None = None
        self._next_survey = 0.0
        self._finished_at: float | None = None
        self._told_twin = False

    def wait(self, timeout_seconds: float) -> str | Record:
        """The attempt by which a new group forms now, or the record of the group to join. PeerError: neither
        in time."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                if (record := self._running_group()) is not None:
                    self._retract()
                    return record
                if self._all_are_here():
                    return self._attempt
            except BoardAway as error:
                self._trouble = f"the store does not answer: {error}"
            if time.monotonic() >= deadline:
                raise self._nobody(timeout_seconds)
            time.sleep(_ROUND_SECONDS)

    # --- A running group ---

    def _running_group(self) -> Record | None:
        if time.monotonic() < self._next_survey:
            return None
        self._next_survey = time.monotonic() + _SURVEY_SECONDS
        try:
            record = Record.of(self._board.peek("record"))
        except ValueError:
            return None
        self._group_trouble = ""
        if record.size != self._size:  # of an earlier job: all its ranks must come anew
            self._group_trouble = f"the group that formed before has size {record.size}, not {self._size}"
            return None
        found = self._survey(record)
        if found.twin:
            self._group_trouble = f"another process of rank {self._rank} runs; end it first"
            if not self._told_twin:
                _logger.warning("rank %d waits: %s", self._rank, self._group_trouble)
            self._told_twin = True
            return None
        if 2 * len(found.training) >= self._size:
            return found.record
        self._judge_end(record, found)
        return None

    def _judge_end(self, record: Record, found: Survey) -> None:
        if found.training:
            names = ", ".join(map(str, sorted(found.training)))
            self._group_trouble = (
                f"of the running group only rank {names} answers, fewer than half of {self._size}: too few "
                f"to take others in. They end with TooFewRanksError; start them again, too, from a checkpoint"
            )
            return
        others = [rank for rank in range(self._size) if rank != self._rank]
        if not others or not all(self._board.peek(finished_key(record.session, rank)) for rank in others):
            return
        self._finished_at = self._finished_at or time.monotonic()
        over = time.monotonic() - self._finished_at > self._patience_seconds
        if over and set(others) <= set(self._missing):
            raise GroupFinished(
                "all other ranks have finished, so this one cannot train on. Use the result of another rank, "
                "or start all ranks again for a new job",
                others,
            )

    # --- A new group ---

    def _all_are_here(self) -> bool:
        return self._has_gathered() if self._rank == 0 else self._is_called()

    def _has_gathered(self) -> bool:
        """Rank 0 invites, and begins when everybody is there."""
        if not self._attempt:
            self._attempt = secrets.token_hex(_KEY_BYTES)
            self._invite()
        invitation = self._invitation()
        if not invitation:
            self._invite()  # the store has lost it
        elif invitation["attempt"] != self._attempt:
            raise self._replaced()
        here = {rank: self._board.peek(f"{self._attempt}/here/{rank}") for rank in range(1, self._size)}
        self._missing = [rank for rank, process in here.items() if not process]
        if self._missing:
            names = ", ".join(map(str, self._missing))
            self._trouble = f"rank(s) {names} did not come; did they start?"
            return False
        self._board.put(f"{self._attempt}/go", [self._own, *here.values()])
        return True

    def _invite(self) -> None:
        self._board.put("invitation", {"attempt": self._attempt, "size": self._size})

    def _is_called(self) -> bool:
        """Others say that they are there, and wait until rank 0 begins with them."""
        self._missing = [rank for rank in range(self._size) if rank != self._rank]
        invitation = self._invitation()
        if not invitation:
            self._trouble = "rank 0 did not come; did it start?"
            return False
        if not self._fits(invitation):
            return False
        self._attempt = invitation["attempt"]
        process = self._board.peek(self._here())
        if process is not None and process != self._own and self._is_there_in == self._attempt:
            raise self._replaced()
        if process != self._own:
            self._board.put(self._here(), self._own)
            self._is_there_in = self._attempt
        called = self._board.peek(f"{self._attempt}/go")
        if isinstance(called, list) and self._own in called:
            return True
        self._trouble = "rank 0 waits for other ranks, or has ended"
        if called is None:
            self._missing.remove(0)
        return False

    def _invitation(self) -> dict[str, Any]:
        """Empty: there is none."""
        found = self._board.peek("invitation")
        good = isinstance(found, dict) and isinstance(found.get("attempt"), str) and found["attempt"]
        return found if good else {}

    def _fits(self, invitation: dict[str, Any]) -> bool:
        """ConfigError: rank 0 counts other ranks than this one. Not at once, because the invitation may be an
        old one, which rank 0 is about to replace."""
        size = invitation.get("size")
        if size == self._size:
            self._odd_size_at = None
            return True
        self._trouble = f"rank 0 began a group of size {size}, not {self._size}"
        now = time.monotonic()
        self._odd_size_at = self._odd_size_at or now
        if now - self._odd_size_at > self._patience_seconds:
            raise ConfigError(
                f"size = {self._size} on rank {self._rank} and {size} on rank 0 of job "
                f"{self._board.job_id!r}: it must be the same on every rank"
            )
        return False

    def _here(self) -> str:
        return f"{self._attempt}/here/{self._rank}"

    def _retract(self) -> None:
        """A process that joins a running group is not there for a new one."""
        if self._attempt and self._rank != 0:
            self._board.put(self._here(), "")
        elif self._attempt:
            self._board.put("invitation", {"attempt": "", "size": self._size})

    # --- Errors ---

    def _replaced(self) -> ConnectError:
        return ConnectError(
            f"another process has started as rank {self._rank} of job {self._board.job_id!r}: every rank of "
            f"a job needs a number of its own, and every job an id of its own",
            [self._rank],
        )

    def _nobody(self, timeout_seconds: float) -> PeerError:
        more = f"; {self._group_trouble}" if self._group_trouble else ""
        return ConnectError(
            f"rank {self._rank} of job {self._board.job_id!r} found no group within {timeout_seconds:g} s: "
            f"{self._trouble}{more}",
            self._missing,
        )
