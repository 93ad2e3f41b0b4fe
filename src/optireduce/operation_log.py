"""One JSON object a line for every operation that has ended on this rank, so that what was decided can be
explained later. Off unless ``Config.operation_log`` names a file.

Fields:

=====================  ===================================================================================
operation              number of the operation in its group
time                   when it ended, seconds since 1970
rank                   the rank that writes
bytes                  size of the reduced buffer, in the form in which it travels
bounded                whether it had a deadline
elapsed_ms             from the local start to the local end
stood_still_ms         of these, the time in which this process should have run and did not
quorum_wait_ms         of these, the time in which too few ranks were there to begin
closed_by              "complete", "early" or "deadline"
contributions_lost     share of the buffer lost on the way to those who reduce
reduced_lost           share of the buffer lost on the way back
lost_by_peer           {rank: [bytes of its contributions, bytes that it reduced]}, only ranks that owe any
absent                 ranks not waited for
behind_ms              how much later than the median peer this rank started
bound_ms               the deadline, tB; 0: none
early_ms               the usual time, tC
early_fraction         x: the share of tC waited once all senders are through
incast                 senders at once that this rank asks for
window_bytes           smallest window towards any peer
rtt_ms                 largest smoothed round-trip time
rate                   bytes per second that this rank sends
corrected_bytes        bytes that earlier operations on the buffer had lost, added to this result
non_finite             ranks that sent infinities or NaNs to this one
repaired_bytes         bytes that came only after a repeated request
error                  why it failed, or null
=====================  ===================================================================================

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
    """The object that is logged; see the top of this file. JSON has no infinity: such a number is null."""
    fields = {
        "operation": report.operation,
        "time": ended_at,
        "rank": rank,
        "bytes": report.bytes,
        "bounded": report.bounded,
        "elapsed_ms": report.elapsed_seconds * 1e3,
        "stood_still_ms": report.stood_still_seconds * 1e3,
        "quorum_wait_ms": report.quorum_wait_seconds * 1e3,
        "closed_by": report.closed_by,
        "contributions_lost": report.contributions_lost_share,
        "reduced_lost": report.reduced_lost_share,
        "lost_by_peer": {str(peer): list(lost) for peer, lost in report.lost_by_peer.items()},
        "absent": list(report.absent),
        "behind_ms": report.behind_seconds * 1e3,
        "bound_ms": report.bound_seconds * 1e3,
        "early_ms": report.early_seconds * 1e3,
        "early_fraction": report.early_fraction,
        "incast": report.incast,
        "window_bytes": report.window_bytes,
        "rtt_ms": report.rtt_seconds * 1e3,
        "rate": report.rate_bytes_per_second,
        "corrected_bytes": report.corrected_bytes,
        "non_finite": list(report.non_finite),
        "repaired_bytes": report.repaired_bytes,
        "error": error,
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
