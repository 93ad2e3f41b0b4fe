"""Threads that complete futures. They exist only where somebody asked for a future.

Completing a future runs its callbacks on the completing thread, and a callback may itself wait for a later
operation (PowerSGD does). So the thread that waits for operations, the leader, hands that duty on before it
runs callbacks; there is always another thread to take it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from .transport import Operation

_JOIN_SECONDS = 5.0


class CompletionPool:
    """Completes operations in the order they were submitted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[Operation, Callable[[], None]]] = deque()
        self._led = False  # a thread is waiting for an operation
        self._idle = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def submit(self, operation: Operation, complete: Callable[[], None]) -> None:
        """Call ``complete`` from a thread of the pool once the operation is settled."""
        with self._changed:
            self._queue.append((operation, complete))
            self._find_leader()

    def stop(self) -> None:
        """Return when all threads are gone. The transport must be closed before: that settles every
        operation."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def _find_leader(self) -> None:
        """Holding the lock: see to it that somebody waits for the head of the queue."""
        if self._led or not self._queue:
            return
        if self._idle:
            self._changed.notify()
        else:
            thread = threading.Thread(target=self._run, name="optireduce-completion", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while self._complete_next():  # a function of its own: nothing is held on to between operations
            pass

    def _complete_next(self) -> bool:
        task = self._lead()
        if task is None:
            return False
        operation, complete = task
        # complete() reports the error; a leader that died of it would leave every future waiting.
        with contextlib.suppress(Exception):
            operation.wait()
        with self._changed:
            self._led = False
            self._find_leader()
        complete()
        return True

    def _lead(self) -> tuple[Operation, Callable[[], None]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: not self._led and (bool(self._queue) or self._stopped))
            self._idle -= 1
            if not self._queue:  # stopped; who heard of it while somebody led has gone to sleep again
                self._changed.notify_all()
                return None
            self._led = True
            return self._queue.popleft()
