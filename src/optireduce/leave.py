"""A rank that leaves while the others train on.

It first gives its residuals, with the operations that the others begin. Then it tells them that it leaves,
and takes part with nothing in what some of them have begun already; the others begin nothing that nobody has
begun. When nothing is open they agree on a view without it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from .errors import LocalError
from .transport import Operation, Transport

_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 1.0  # for the next step of the others, and
_PATIENCE_STEPS = 5  # so many steps: a contribution that is three steps old is awaited

_logger = logging.getLogger("optireduce")


class Leaving:
    """Of one session. ``values_of``: how many float32 a stream's bucket stands for; 0: none, or unknown."""

    def __init__(self, transport: Transport, values_of: Callable[[int], int]) -> None:
        self._transport = transport
        self._values_of = values_of
        self.is_asked = False
        self.has_left = False
        self._previous: Any = None  # the handler of SIGTERM before ours; None: ours is not installed
        self._step_at = time.monotonic()
        self._step_seconds = 0.0
        self._open: list[Operation] = []
        self._step = 0
        self._streams: set[int] = set()  # of the step that is followed

    def note_step(self) -> None:
        """A step begins."""
        now = time.monotonic()
        self._step_seconds, self._step_at = now - self._step_at, now

    def obstacle(self, reasons: list[str]) -> str:
        """Why the others cannot go on without this rank; "": they can."""
        transport = self._transport
        if reasons:
            return f"the loop makes collectives outside optireduce: {'; '.join(reasons)}"
        if transport.size > 64 or transport.config.delivery != "carry":
            return 'the group has more than 64 ranks, or delivery is not "carry"'
        return ""

    def require_possible(self, what: str, reasons: list[str]) -> None:
        """LocalError says what is in the way."""
        if obstacle := self.obstacle(reasons):
            raise LocalError(
                f"{what} is not possible: the others cannot train on without rank {self._transport.rank}, "
                f"because {obstacle}. Close the session on every rank at the same step instead"
            )

    # ---- SIGTERM

    def listen(self) -> None:
        """From now on SIGTERM asks this rank to leave. A second one does what it did before."""
        if threading.current_thread() is not threading.main_thread():
            raise LocalError(
                f"leave_on_sigterm() was called in thread {threading.current_thread().name!r}: only the main "
                f"thread of a process can install a signal handler"
            )
        if self._previous is None:
            previous = signal.signal(signal.SIGTERM, self._note)
            self._previous = signal.SIG_DFL if previous is None else previous

    def _note(self, *_: object) -> None:
        self.is_asked = True
        self.forget()

    def forget(self) -> None:
        """SIGTERM does what it did before."""
        previous, self._previous = self._previous, None
        if previous is not None and signal.getsignal(signal.SIGTERM) == self._note:
            with contextlib.suppress(ValueError):  # another thread: at exit, or in the garbage collector
                signal.signal(signal.SIGTERM, previous)

    # ---- Leaving

    def run(self, step: int, scale: float, keeps_scale: bool) -> None:
        """Return when no other rank needs this one, or after ``linger_seconds``. ``scale``: of a GradScaler
        in the next step; ``keeps_scale``: there is none."""
        self._step = first = step
        engine, config = self._transport.engine, self._transport.config
        patience = _PATIENCE_SECONDS + _PATIENCE_STEPS * self._step_seconds
        limit = time.monotonic() + min(patience, config.linger_seconds)
        # Residuals are rescaled, and nobody tells this rank a new scale.
        while (keeps_scale or self._step == first) and time.monotonic() < limit and self._has_to_give():
            self._follow(limit, scale, gives=True)
        engine.prepare_to_leave()
        limit = time.monotonic() + config.linger_seconds
        while not engine.may_leave() and time.monotonic() < limit:
            self._follow(limit, scale, gives=keeps_scale or self._step == first)
        if engine.keeps_residual():
            _logger.warning(
                "rank %d leaves with contributions that no step has included: they are dropped",
                self._transport.rank,
            )
        self.has_left = True

    def _has_to_give(self) -> bool:
        """Excluded contributions, or some that are on their way and may be excluded again."""
        self._open = [operation for operation in self._open if not operation.poll(0.0)]
        return bool(self._open) or self._transport.engine.keeps_residual()

    def _follow(self, limit: float, scale: float, gives: bool) -> None:
        """Take part in the next operation that the others begin, if one comes soon."""
        left = max(0.0, min(_LOOK_SECONDS, limit - time.monotonic()))
        found = self._transport.engine.next_uncalled(left)
        if found is None:
            return
        _, elements, dtype, op, bounded, stream = found
        if bounded and stream in self._streams:
            self._step += 1
            self._streams.clear()
        if bounded:
            self._streams.add(stream)
        self._open.append(
            self._transport.follow(
                elements,
                dtype,
                op,
                bounded=bounded,
                stream=stream,
                step=self._step,
                scale=scale,
                values=self._values_of(stream),
                gives=bounded and gives,
            )
        )
