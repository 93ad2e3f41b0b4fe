"""What all ranks of a soak do, whatever they work at: again and again until the time is over, and tell."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ...config import Config
from ...report import Report, StepReport
from ..voice import Voice
from .plan import Seat

_TELL_SECONDS = 0.5
_CHECK_EVERY = 5  # operations: checking a value takes longer than reducing it
_OPERATION_SECONDS = 20.0
_LEAST_RANKS = 2  # a busy machine may keep two of four hosts standing still at once


class Work(Protocol):
    """Operations, one after the other."""

    def prepare(self) -> None:
        """What a rank does on its own before the others are needed."""

    def reduce(self) -> Report | StepReport:
        """What it does with the others."""

    def wrong_values(self) -> int:
        """In the result of the last operation."""

    def whose_values(self) -> str:
        """The same for people, at length."""

    def stats(self) -> Mapping[str, Any]:
        """The engine's counters."""


def config_of(seat: Seat) -> Config:
    """The settings of a chapter's group."""
    return Config(
        interface=seat.interface,
        bounded=True,
        bounded_min_bytes=0,
        min_ranks=_LEAST_RANKS,
        timeout_seconds=_OPERATION_SECONDS,
    )


def soak(seat: Seat, voice: Voice, work: Work) -> None:
    """Work until the time is over, or the group is."""
    tally = {"operations": 0, "bytes": 0, "lost_bytes": 0, "checked": 0, "wrong": 0}
    times: list[tuple[float, float]] = []
    voice.gate()
    began = told = time.monotonic()
    while time.monotonic() - began < seat.seconds:
        work.prepare()
        begin = time.monotonic()
        try:
            report = work.reduce()
        except RuntimeError as error:  # an OptiReduceError, or what DDP makes of one
            voice.tell("ended", error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began)
            break
        times.append((begin, time.monotonic() - begin))
        tally["operations"] += 1
        tally["bytes"] += report.bytes
        tally["lost_bytes"] += report.lost_bytes
        if tally["operations"] % _CHECK_EVERY == 0:
            tally["checked"] += 1
            if wrong := work.wrong_values():
                tally["wrong"] += wrong
                voice.tell("wrong", whose=work.whose_values())
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            voice.tell("progress", resident=resident_bytes(), times=times, **tally)
            times = []
    voice.tell("progress", resident=resident_bytes(), times=times, **tally)
    stats = work.stats()
    disbelieved = stats["forged_packets"] + stats["invalid_packets"]
    voice.tell("tally", disbelieved=disbelieved, drift=stats.get("drift"), **tally)


def resident_bytes() -> int:
    """Memory that this process holds: what its allocator keeps in reserve, which every rush makes more of,
    goes back to the kernel first."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
