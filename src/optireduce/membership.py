"""Who is a member: ranks that were removed from the view, ranks that returned, and a rank left behind."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

_logger = logging.getLogger("optireduce")


Kind = Literal["removed", "left", "returned", "left behind"]
RawEvent: TypeAlias = tuple[str, int, int, int]
"""As the core tells it: kind, rank, view, operation."""


@dataclass(frozen=True)
class MembershipEvent:
    """One change of the membership view. All members see the same changes in the same order."""

    kind: Kind
    """"left": cleanly, while the others go on. "left behind": the others went on without ``rank``, and it
    cannot replay what it missed."""
    rank: int
    view: int
    """Number of the view that the change made."""
    operation: int
    """The first operation of this view."""


MembershipCallback = Callable[[MembershipEvent], None]


class Membership:
    """Tells the log and the callbacks of a group about events, one at a time and in order.

    ``drain`` is asked for new events at every :meth:`update`, by whatever thread.
    """

    def __init__(self, drain: Callable[[], Iterable[RawEvent]]) -> None:
        self._drain = drain
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
            self._pending.extend(MembershipEvent(cast(Kind, kind), *where) for kind, *where in self._drain())
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
        _logger.warning(_text(event))
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            try:
                callback(event)
            except Exception:  # training goes on; whoever wrote the callback sees why it failed
                _logger.exception("the membership callback %r failed on %s", callback, event)


_TEXTS = {
    "removed": "was removed from the group, because it left or is silent",
    "left": "has left the group",
    "returned": "has returned to the group",
    "left behind": "was left behind by the group: it missed too much to replay",
}


def _text(event: MembershipEvent) -> str:
    return f"rank {event.rank} {_TEXTS[event.kind]} (view {event.view}, from operation {event.operation} on)"
