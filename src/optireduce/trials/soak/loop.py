"""What all ranks of a soak do, whatever they work at: again and again until the time is over, and tell."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from ...config import Config
from ...report import Report, StepReport
from ..stream import missing_share
from ..voice import Voice
from .plan import Seat
from .values import Floats, Ledger

_TELL_SECONDS = 0.5
_OPERATION_SECONDS = 20.0
_LEAST_RANKS = 2  # a busy machine may keep two of four hosts standing still at once
_MAX_LAG = 200  # steps: a host that was stopped for seconds can replay what it missed
_MOST_OVERTIME_SECONDS = 20.0
_OVER = 0.5  # share of the members whose time is over


class Work(Protocol):
    """Operations, one after the other. The last value of each says whose time is over: every member reads the
    same share, so that all end after the same step."""

    ledger: Ledger

    def prepare(self, over: bool) -> None:
        """What a rank does on its own before the others are needed."""

    def reduce(self) -> tuple[Report | StepReport, Floats]:
        """What it does with the others: the report and the result."""

    def finish(self) -> float:
        """Flush the residuals of all ranks; the ledger's deviation then."""

    def stats(self) -> Mapping[str, Any]:
        """The engine's counters."""


def config_of(seat: Seat) -> Config:
    """The settings of a chapter's group."""
    return Config(
        interface=seat.interface,
        min_ranks=_LEAST_RANKS,
        max_lag=_MAX_LAG,
        timeout_seconds=_OPERATION_SECONDS,
        drop=seat.drop,
    )


def soak(seat: Seat, voice: Voice, work: Work) -> None:
    """Work until the time of most ranks is over, or the group is; then flush."""
    operations = 0
    tally = {"bytes": 0, "missing": 0.0}
    times: list[tuple[float, float]] = []
    checks: list[tuple[int, int]] = []  # step and checksum
    voice.gate()
    began = told = time.monotonic()
    all_over = False
    while not all_over and time.monotonic() - began < seat.seconds + _MOST_OVERTIME_SECONDS:
        work.prepare(time.monotonic() - began >= seat.seconds)
        begin = time.monotonic()
        try:
            report, result = work.reduce()
        except RuntimeError as error:  # an OptiReduceError, or what DDP makes of one
            voice.tell("ended", error=f"{type(error).__name__}: {error}")
            break
        times.append((begin, time.monotonic() - begin))
        checks.append((operations, crc32(result.data)))
        work.ledger.note_view(report.view, report.members)
        operations += 1
        tally["bytes"] += report.bytes
        tally["missing"] += missing_share(report) * report.bytes
        all_over = bool(result[-1] >= _OVER)
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            voice.tell(
                "progress",
                resident=resident_bytes(),
                times=times,
                checks=checks,
                operations=operations,
                **tally,
            )
            times, checks = [], []
    voice.tell(
        "progress", resident=resident_bytes(), times=times, checks=checks, operations=operations, **tally
    )
    if all_over:
        _tell_deviation(voice, work)
    stats = work.stats()
    voice.tell("tally", disbelieved=stats["forged_packets"] + stats["invalid_packets"])


def _tell_deviation(voice: Voice, work: Work) -> None:
    deviation, ledger = work.finish(), work.ledger
    voice.tell(
        "ledger",
        deviation=deviation,
        allowed=ledger.allowed,
        view_changes=ledger.view_changes,
        out_of_view=ledger.out_of_view,
    )


def resident_bytes() -> int:
    """Memory that this process holds: what its allocator keeps in reserve, which every rush makes more of,
    goes back to the kernel first."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
