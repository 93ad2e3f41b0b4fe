"""A connected engine with what every user of it needs: operations that keep their memory alive, errors as
exceptions.

Shared by the Communicator, the process group and the DDP hook.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import _core
from .config import Config
from .connect import connect
from .dtypes import DType
from .errors import ClosedError, MismatchError, OperationTimeout, OptiReduceError, PeerLeftError
from .exchange import Exchange
from .report import Report

# Native waits are cut into slices so that Ctrl-C reaches a thread that waits.
_SLICE_SECONDS = 0.1
_TIMED_OUT, _MISMATCH = 1, 2  # _core.Report.error_code; anything else but 0: closed, here or by a peer


class Operation:
    """One all-reduce in flight, and its outcome once somebody has waited for it. Any thread may wait."""

    def __init__(
        self, transport: Transport, number: int, keep_alive: object, finish: Callable[[], None] | None
    ) -> None:
        self._transport = transport
        self.number = number
        self._keep_alive = keep_alive  # the engine writes to this memory until the operation is done
        self._finish = finish  # e.g. copy the result back into a non-contiguous array
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._error: OptiReduceError | None = None

    @property
    def settled(self) -> bool:
        """Whether the outcome is known; does not ask the engine."""
        return self._report is not None or self._error is not None

    @property
    def error(self) -> OptiReduceError | None:
        """Why it failed; None while it is in flight and when it succeeded."""
        return self._error

    def poll(self, timeout_seconds: float) -> bool:
        """Wait at most so long, driving the engine from this thread; whether the outcome is known. Never
        raises for it."""
        if not self.settled:
            raw = self._transport.engine.wait(self.number, timeout_seconds)
            if raw is not None:
                self._settle(raw)
        return self.settled

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Like poll, in slices; None: until it is done, which the operation's own timeout bounds."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = (
                _SLICE_SECONDS
                if deadline is None
                else min(_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))
            )
            if self.poll(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def result(self) -> Report:
        """The report of a settled operation; raises its error."""
        if self._error is not None:
            raise self._error
        assert self._report is not None, "result() is for settled operations"
        return self._report

    def _settle(self, raw: _core.Report) -> None:
        with self._lock:
            if self.settled:
                return
            error = _error_of(raw)
            if error is None and self._finish is not None:
                self._finish()
            self._keep_alive = self._finish = None
            self._transport.forget(self)
            if error is not None:
                self._error = error
            else:
                self._report = Report(
                    operation=raw.operation,
                    bytes=raw.bytes,
                    elapsed_seconds=raw.elapsed_seconds,
                    repaired_bytes=raw.repaired_bytes,
                    lost_bytes=raw.lost_bytes,
                )


class Transport:
    """One rank's end of one group."""

    def __init__(self, exchange: Exchange, config: Config, timeout_seconds: float, master: str) -> None:
        self.config = config
        self.rank = exchange.rank
        self.size = exchange.size
        self.timeout_seconds = config.timeout_seconds or timeout_seconds
        self.engine = connect(exchange, config, self.timeout_seconds, master)
        self._in_flight: dict[int, Operation] = {}
        self._lock = threading.Lock()
        self._closed = False

    def start(
        self,
        pointer: int,
        elements: int,
        dtype: DType,
        op: int,
        *,
        timeout_seconds: float | None = None,
        keep_alive: object = None,
        finish: Callable[[], None] | None = None,
    ) -> Operation:
        """Begin an in-place all-reduce; the n-th call on every rank is the same operation.

        ``keep_alive`` is held until the operation is done; ``finish`` runs once, when it has succeeded and
        before anybody is told.
        """
        self._reap()
        with self._lock:  # numbers are given in call order
            if self._closed:
                raise ClosedError("the group is closed: no operation can be started")
            number = self.engine.all_reduce(
                pointer, elements, dtype.code, op, timeout_seconds or self.timeout_seconds
            )
            operation = Operation(self, number, keep_alive, finish)
            self._in_flight[number] = operation
        return operation

    def forget(self, operation: Operation) -> None:
        """Called by an operation that is settled."""
        self._in_flight.pop(operation.number, None)

    def stats(self) -> dict[str, Any]:
        """Counters of the engine since the group formed."""
        return dict(self.engine.stats())

    def close(self) -> None:
        """Fail what is in flight, answer peers for ``linger_seconds`` at most, and free everything. May be
        repeated."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.engine.close(self.config.linger_seconds)
        for operation in list(self._in_flight.values()):
            operation.poll(0.0)
        self._in_flight.clear()

    def _reap(self) -> None:
        """Settle operations that nobody waited for; the oldest end first, so this is cheap."""
        for operation in list(self._in_flight.values()):
            if not operation.poll(0.0):
                return


def _error_of(raw: _core.Report) -> OptiReduceError | None:
    if raw.error_code == 0:
        return None
    if raw.error_code == _TIMED_OUT:
        return OperationTimeout(raw.error, raw.ranks)
    if raw.error_code == _MISMATCH:
        return MismatchError(raw.error, raw.ranks)
    return PeerLeftError(raw.error, raw.ranks) if raw.ranks else ClosedError(raw.error)
