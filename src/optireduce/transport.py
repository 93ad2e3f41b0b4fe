"""A connected engine with what every user of it needs: operations that keep their memory alive, errors as
exceptions.

Shared by the Communicator, the process group and the DDP hook.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from . import _core
from .calls import CallOptions, CallStreams
from .config import Config
from .connect import Connection, connect
from .dtypes import WEIGHTED_MEAN, DType
from .errors import (
    ClosedError,
    GroupFinished,
    LeftBehind,
    MismatchError,
    OperationTimeout,
    OptiReduceError,
    PeerError,
    PeerLeftError,
    RankLostError,
    TooFewRanksError,
)
from .exchange import Exchange
from .membership import Membership
from .multicast import take_events
from .operation_log import OperationLog
from .report import Report, report_of
from .wire import Following, IdleBuffers, Lost, Travelling, Wire, effective_wire, lost_values, travelling

Finish = Callable[[Lost], None]
Connector = Callable[[Exchange, Config, float, str, bool], Connection]
"""See ``connect.connect``."""

# Native waits are cut into slices so that Ctrl-C reaches a thread that waits.
_SLICE_SECONDS = 0.5
# By _core.Report.error_code. 3 is closed, by this process or by a peer.
_ERRORS: dict[int, type[PeerError]] = {
    1: OperationTimeout,
    2: MismatchError,
    4: TooFewRanksError,
    5: LeftBehind,
    6: RankLostError,
    7: GroupFinished,
}


class Operation:
    """One all-reduce in flight, and its outcome once somebody has waited for it. Any thread may wait."""

    def __init__(
        self,
        transport: Transport,
        number: int,
        form: Travelling,
        stays_readable: bool,
        keep_alive: object,
        finish: Finish | None,
    ) -> None:
        self._transport = transport
        self.number = number
        self._form: Travelling | None = form
        self._stays_readable = stays_readable
        self._keep_alive = keep_alive  # the engine writes to this memory until the operation is done
        self._finish = finish  # e.g. copy the result back into a non-contiguous array
        self._lock = threading.Lock()
        self._raw: _core.Report | None = None
        self._error: OptiReduceError | None = None

    @property
    def settled(self) -> bool:
        """Whether the outcome is known; does not ask the engine."""
        return self._raw is not None

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
        deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.poll(min(_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def result(self) -> Report:
        """The report of a settled operation; raises its error."""
        if self._error is not None:
            raise self._error
        assert self._raw is not None, "result() is for settled operations"
        return report_of(self._raw)  # here, not for everybody: short operations would notice

    def _settle(self, raw: _core.Report) -> None:
        with self._lock:
            if self.settled:
                return
            self._error = _error_of(raw, self._transport.advice_to_left_behind)
            if self._error is None:
                self._deliver(raw)
            self._keep_alive = self._finish = self._form = None
            self._raw = raw
        self._transport.settled(self, raw)  # without the lock: it calls back into user code

    def _deliver(self, raw: _core.Report) -> None:
        """The engine is through with the form in which it travelled, unless it stays readable. (Not after an
        error: its memory is then left to the garbage collector, rather than given to the next operation.)"""
        assert self._form is not None
        if self._stays_readable:
            self._transport.keep(self._form, self._keep_alive)
        else:
            self._form.release()
        if self._finish is not None:
            self._finish(lost_values(raw, self._form))


class Transport:
    """One rank's end of one group."""

    def __init__(
        self,
        exchange: Exchange,
        config: Config,
        timeout_seconds: float,
        master: str,
        *,
        fixed_membership: bool = True,
        connector: Connector | None = None,
    ) -> None:
        """``fixed_membership``: a silent rank ends operations; False: the others go on without it.
        ``connector``: another way to get an engine than to form a group with all ranks."""
        self.config = config
        self._fixed_membership = fixed_membership
        self.rank = exchange.rank
        self.size = exchange.size
        self.timeout_seconds = config.timeout_seconds or timeout_seconds
        self.rank_lost: RankLostError | None = None  # where membership is fixed, of the first operation
        found = (connector or connect)(exchange, config, self.timeout_seconds, master, fixed_membership)
        self.engine, self.seed, self._hosts = found.engine, found.seed, found.hosts
        self.addresses, self.secret = found.addresses, found.secret
        self.advice_to_left_behind: Callable[[], str] = str
        self._idle = IdleBuffers()
        self._readable: list[tuple[Travelling, object]] = []  # memory that the engine reads until release()
        self._any_readable = False  # whether any operation so far had stays_readable
        self._forms = 0
        self._step = 0
        self._streams = CallStreams()
        self.membership = Membership(partial(take_events, self.engine))
        self._log = OperationLog(config.operation_log, self.rank) if config.operation_log else None
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
        weight: int = 1,
        bounded: bool = False,
        narrow: bool = False,
        stream: int = 0,
        step: int | None = None,
        scale: float = 1.0,
        stays_readable: bool = False,
        keep_alive: object = None,
        finish: Finish | None = None,
    ) -> Operation:
        """Begin an in-place all-reduce; the n-th call on every rank is the same operation.

        ``bounded``: it may have a deadline, if ``Config.bounded`` allows it. Then
        ``stream`` names the bucket and its layout, the same on all ranks: residuals are kept by it.
        ``narrow``: it may travel as ``Config.wire`` says. ``step``: the training step; None: that of the call
        before. ``scale``: of the values, which a GradScaler multiplied by it.
        ``stays_readable``: the caller does not write to the memory after the end before release().
        A mean divides by the sum of the ``weight`` of all ranks; 0: this rank gives nothing.
        ``keep_alive`` is held until the operation is done; ``finish`` runs once, when it has succeeded and
        before anybody is told, and hears which values did not come back (best effort only).
        """
        self._reap()
        with self._lock:  # numbers are given in call order
            if self._closed:
                raise ClosedError("the group is closed: no operation can be started")
            wire = effective_wire(self.config.wire, self._hosts) if narrow else "fp32"
            form = self._form(pointer, elements, dtype, wire)
            self._step = self._step if step is None else step
            number = self.engine.all_reduce(
                form.pointer,
                form.elements,
                form.dtype.code,
                op,
                timeout_seconds or self.timeout_seconds,
                bounded=bounded and bool(self.config.bounded),
                weight=weight,
                stream=stream,
                step=self._step + self._streams.steps,
                scale=scale,
                stays_readable=stays_readable,
                wide=form.wide,
                wide_values=form.values,
                rounding_seed=form.seed,
            )
            self._any_readable |= stays_readable
            operation = Operation(self, number, form, stays_readable, keep_alive, finish)
            self._in_flight[number] = operation
        return operation

    def start_call(
        self,
        pointer: int,
        elements: int,
        dtype: DType,
        op: int,
        options: CallOptions,
        *,
        may_be_late: bool,
        **others: Any,
    ) -> Operation:
        """Begin an all-reduce that the program itself calls. ``may_be_late``: calls that name a stream have a
        deadline, or, if exact, include what earlier ones have left; others are exact and include nothing."""
        weight = 1 if options.weight is None else options.weight
        carries = may_be_late and self.config.delivery == "carry"
        stream = 0
        if options.stream is not None and carries:
            op = op if options.weight is None else WEIGHTED_MEAN
            with self._lock:
                stream = self._streams.enter(options.stream, elements, dtype, op)
        return self.start(
            pointer,
            elements,
            dtype,
            op,
            weight=weight,
            bounded=stream != 0 and not options.exact,
            stream=stream,
            scale=float(options.scale),
            **others,
        )

    def follow(
        self,
        elements: int,
        dtype: int,
        op: int,
        *,
        bounded: bool,
        stream: int,
        step: int,
        scale: float,
        values: int,
        gives: bool,
    ) -> Operation:
        """Take part in an operation that others have begun, described as it travels, with no values of
        this rank. ``values``: float32 that it stands for; 0: it travels as it is. ``gives``: this rank's
        residual of the stream goes along."""
        form = Following(elements, dtype, values)
        with self._lock:
            if self._closed:
                raise ClosedError("the group is closed: no operation can be followed")
            number = self.engine.all_reduce(
                form.pointer,
                form.elements,
                dtype,
                op,
                self.timeout_seconds,
                bounded=bounded,
                weight=int(gives and op != WEIGHTED_MEAN),
                stream=stream,
                step=step,
                scale=scale,
                stays_readable=False,
                wide=form.wide,
                wide_values=form.values,
                rounding_seed=form.seed,
            )
            operation = Operation(self, number, form, False, form, None)
            self._in_flight[number] = operation
        return operation

    def keep(self, form: Travelling, keep_alive: object) -> None:
        """Called by an operation with ``stays_readable`` when it has succeeded."""
        self._readable.append((form, keep_alive))

    def release(self) -> None:
        """The memory of finished operations with ``stays_readable`` is about to be written to."""
        if not self._any_readable:
            return
        ended = list(self._readable)
        self.engine.release()
        del self._readable[: len(ended)]
        for form, _ in ended:
            form.release()

    def restore(self, completed: int, digest: int, step: int) -> None:
        """Go on after a snapshot: the next call is operation ``completed`` of this training step. Only for a
        rank that was left behind, with nothing in flight."""
        self.release()
        self._reap()
        with self._lock:
            self.engine.restore(completed, digest, step)
            self._step = step

    def settled(self, operation: Operation, raw: _core.Report) -> None:
        """Called by an operation, once, when its outcome is known."""
        self._in_flight.pop(operation.number, None)
        if self._fixed_membership and isinstance(operation.error, RankLostError):
            self.rank_lost = self.rank_lost or operation.error
        if self._log is not None:
            self._log.write(report_of(raw), raw.error or None)
        self.membership.update()

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
        self._readable.clear()
        self.membership.clear()
        if self._log is not None:
            self._log.close()

    def _form(self, pointer: int, elements: int, dtype: DType, wire: Wire) -> Travelling:
        """Ranks round at random independently of each other: their errors then cancel in the mean."""
        self._forms += 1
        seed = (self.seed + self._forms) * self.size + self.rank
        return travelling(wire, pointer, elements, dtype, seed % 2**64, self._idle)

    def _reap(self) -> None:
        """Settle operations that nobody waited for; the oldest end first, so this is cheap."""
        for operation in list(self._in_flight.values()):
            if not operation.poll(0.0):
                return


def _error_of(raw: _core.Report, advice_to_left_behind: Callable[[], str]) -> OptiReduceError | None:
    if raw.error_code == 0:
        return None
    if raw.error_code in _ERRORS:
        kind = _ERRORS[raw.error_code]
        advice = advice_to_left_behind() if kind is LeftBehind else ""
        return kind(raw.error + advice, raw.ranks)
    return PeerLeftError(raw.error, raw.ranks) if raw.ranks else ClosedError(raw.error)
