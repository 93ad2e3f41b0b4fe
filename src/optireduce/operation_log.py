"""One JSON object a line for every operation that has ended on this rank. Off unless
``Config.operation_log`` names a file.

Every field of :class:`Report` is there under its own name, times in milliseconds (``elapsed_ms`` for
``elapsed_seconds``), and besides: ``time`` (when it ended, seconds since 1970), ``rank`` (the rank that
writes), ``excluded_share``, and ``error`` (why it failed, or null).

Lines are appended by a thread of their own, every second and at the end: a slow disk delays no operation.
Several groups, or several ranks, may share a file; lines never mix.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .report import Report

_FLUSH_SECONDS = 1.0
_MOST_WAITING = 16_384  # some 10 MB; more operations than a rank does in a second
_JOIN_SECONDS = 5.0  # a disk that hangs does not keep the process from ending

_logger = logging.getLogger("optireduce")


class OperationLog:
    """The log of one rank. Any thread may write."""

    def __init__(
        self,
        path: str,
        rank: int,
        clock: Callable[[], float] = time.time,
        flush_seconds: float = _FLUSH_SECONDS,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self._path = path.replace("{rank}", str(rank))
        self._rank = rank
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[float, Report, str | None]] = deque()
        self._dropped = 0
        self._failed = False
        self._owner = os.getpid()  # a forked child must not write what its parent will write
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="optireduce-log", daemon=True)
        self._thread.start()

    def write(self, report: Report, error: str | None = None) -> None:
        """Take note of an operation; returns at once."""
        if self._failed or self._closing.is_set():
            return
        if len(self._waiting) >= self._most_waiting:
            self._dropped += 1
            return
        self._waiting.append((self._clock(), report, error))

    def close(self) -> None:
        """Write what is waiting, within bounds of time. May be repeated."""
        if os.getpid() != self._owner:
            return
        self._closing.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._give_up(error)
            return
        try:
            closing = False
            while not closing:
                closing = self._closing.wait(self._flush_seconds)
                _write_all(file, self._lines())
        except OSError as error:
            self._give_up(error)
        finally:
            os.close(file)
        if self._dropped:
            _logger.warning(
                "operation log %s: %d operations are missing in it, the disk was too slow",
                self._path,
                self._dropped,
            )

    def _lines(self) -> bytes:
        entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
        return b"".join(json.dumps(record(self._rank, *entry)).encode() + b"\n" for entry in entries)

    def _give_up(self, error: OSError) -> None:
        self._failed = True
        self._waiting.clear()
        _logger.warning(
            "operation log %s cannot be written (%s): operations are no longer logged", self._path, error
        )


def record(rank: int, ended_at: float, report: Report, error: str | None) -> dict[str, Any]:
    """The object that is logged. JSON has no infinity: such a number is null."""
    found: dict[str, Any] = {"time": ended_at, "rank": rank, "excluded_share": report.excluded_share}
    for name, value in vars(report).items():
        if name.endswith("_seconds"):
            found[name.removesuffix("_seconds") + "_ms"] = value * 1e3
        else:
            found[name] = value
    found["excluded"] = {str(peer): count for peer, count in report.excluded.items()}
    found["error"] = error
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
    }


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
