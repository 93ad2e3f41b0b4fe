"""The background thread of a rank of an elastic group. It keeps the record in the store, which may lose it
with its host, and tells the other ranks about this process until all of them know. Training never waits for
it, and it never waits for training."""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..snapshot.channel import ChannelError
from ..snapshot.requests import Peers, Refused
from .board import Board, BoardAway, finished_key
from .member import Member
from .record import Record

_LOOK_SECONDS = 0.5
_MOST_SECONDS = 8.0  # between two announcements to ranks that do not answer
_JOIN_SECONDS = 5.0

_logger = logging.getLogger("optireduce")


class Keeper:
    """Runs from :meth:`start` to :meth:`stop`."""

    def __init__(self, board: Board, member: Member, peers: Peers) -> None:
        self._board = board
        self._member = member
        self._peers = peers
        self._stopped = threading.Event()
        self._store_is_away = False
        self._announces_after = 0.0  # seconds
        self._interval = _LOOK_SECONDS
        self._thread = threading.Thread(target=self._run, name="optireduce-elastic", daemon=True)

    def start(self) -> None:
        """Begin by telling the others about this process, if it is a restarted one."""
        self._thread.start()

    def stop(self, finished: bool) -> None:
        """``finished``: this rank's training has ended as it should; processes that are started again later
        are told."""
        self._stopped.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        if finished and not self._member.is_replaced:
            with contextlib.suppress(BoardAway):
                self._board.put(finished_key(self._member.record.session, self._member.rank), True)

    def has_finished(self, rank: int) -> bool:
        """Whether a rank has ended its training as it should. No: nobody knows."""
        with contextlib.suppress(BoardAway):
            return bool(self._board.peek(finished_key(self._member.record.session, rank)))
        return False

    def announce(self) -> None:
        """Tell all ranks that do not know of this process, at the same time."""
        untold = self._member.untold()
        if not untold:
            return
        record = self._member.record
        request = {
            "ask": "join",
            "session": record.session,
            "entry": record.ranks[self._member.rank].to_json(),
        }
        # One that knows us already tells what it has learned of the others: their doors may be new, too.
        known = [rank for rank in self._peers.doors if rank not in untold]
        with ThreadPoolExecutor(len(untold) + 1, "optireduce-join") as pool:
            list(pool.map(lambda rank: self._tell(rank, request), [*known[:1], *untold]))

    def _tell(self, rank: int, request: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ChannelError, Refused, KeyError, ValueError):
            answer = self._peers.ask(rank, request)
            self._member.learn(Record.of(answer["record"]))
            if answer["accepted"]:
                self._member.told(rank)

    def _run(self) -> None:
        while True:
            self._announce_again()
            self._publish()
            if self._member.is_replaced:
                _logger.error(
                    "another process of rank %d has joined the group in place of this one", self._member.rank
                )
                return
            if self._stopped.wait(_LOOK_SECONDS):
                return

    def _announce_again(self) -> None:
        """Less and less often: a rank that does not answer may never come back."""
        self._announces_after -= _LOOK_SECONDS
        if self._announces_after <= 0 and self._member.untold():
            self.announce()
            self._interval = min(2 * self._interval, _MOST_SECONDS)
            self._announces_after = self._interval

    def _publish(self) -> None:
        """The record in the store is ours, or one that knows more."""
        ours = self._member.record
        try:
            if not _covers(self._board.peek("record"), ours):
                self._board.put("record", ours.to_json())
            self._store_is_away = False
        except BoardAway as error:
            if not self._store_is_away:
                _logger.warning(
                    "the store of job %r does not answer (%s): training goes on, but no restarted process "
                    "can join until it answers again",
                    self._board.job_id,
                    error,
                )
            self._store_is_away = True


def _covers(found: Any, ours: Record) -> bool:
    try:
        theirs = Record.of(found)
    except ValueError:
        return False
    return theirs.session == ours.session and not theirs.newer_in(ours)
