"""Who is waited for: ranks that went silent, and ranks that are back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

_logger = logging.getLogger("optireduce")


@dataclass(frozen=True)
class MembershipEvent:
    """One change of who is waited for, as this rank sees it."""

    kind: Literal["absent", "back"]
    rank: int
    operation: int
    """For "absent" the last operation that ended without it before it was given up, for "back" the first that
    waits for it again."""


MembershipCallback = Callable[[MembershipEvent], None]


class Membership:
    """Tells the log and the callbacks of a group about events, one at a time and in order.

    ``drain`` is asked for new events (kind, rank, operation) at every :meth:`update`, by whatever thread.
    """

    def __init__(self, drain: Callable[[], Iterable[tuple[str, int, int]]], absent_after: int) -> None:
        self._drain = drain
        self._absent_after = absent_after
        self._lock = threading.Lock()
        self._pending: deque[MembershipEvent] = deque()
        self._delivering = False
        self._callbacks: list[MembershipCallback] = []

    def register(self, callback: MembershipCallback) -> Callable[[], None]:
        """Call it for every event from now on; what is returned ends that."""
        if not callable(callback):
            raise TypeError(f"callback is a {type(callback).__name__}: it must take a MembershipEvent")
        with self._lock:
            self._callbacks.append(callback)

        def remove() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return remove

    def update(self) -> None:
        """Deliver what is new. Where another thread, or a caller up the stack, is delivering already, that
        one goes on with it: so callbacks may start operations, and never run side by side."""
        with self._lock:
            self._pending.extend(_event(*event) for event in self._drain())
        while (event := self._take()) is not None:
            try:
                self._deliver(event)
            finally:
                with self._lock:
                    self._delivering = False

    def clear(self) -> None:
        """Forget the callbacks, and what they hold."""
        with self._lock:
            self._callbacks.clear()

    def _take(self) -> MembershipEvent | None:
        with self._lock:
            if self._delivering or not self._pending:
                return None
            self._delivering = True
            return self._pending.popleft()

    def _deliver(self, event: MembershipEvent) -> None:
        _logger.warning(_text(event, self._absent_after))
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            try:
                callback(event)
            except Exception:  # training goes on; whoever wrote the callback sees why it failed
                _logger.exception("the membership callback %r failed on %s", callback, event)


def _event(kind: str, rank: int, operation: int) -> MembershipEvent:
    return MembershipEvent("absent" if kind == "absent" else "back", rank, operation)


def _text(event: MembershipEvent, absent_after: int) -> str:
    if event.kind == "absent":
        return (
            f"rank {event.rank} has not contributed for {absent_after} operations "
            f"(up to operation {event.operation}): no longer waited for"
        )
    return f"rank {event.rank} is back at operation {event.operation}: waited for again"
