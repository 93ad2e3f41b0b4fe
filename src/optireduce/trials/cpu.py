"""Whose the processor was: on a machine that others use too, times mean little without it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)  # idle, waiting for a disk
_STEAL_FIELD = 7
_KNOWN_FIELDS = 8  # guests' time, after these, is counted in user time already


@dataclass(frozen=True)
class CpuUse:
    """Cores in use on average."""

    cores: int
    total: float
    ranks: float

    @property
    def others(self) -> float:
        """All but the ranks: other programs, and the kernel's work on packets outside any process."""
        return max(0.0, self.total - self.ranks)


class CpuMeter:
    """From construction to :meth:`read`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy = _busy_seconds()

    def read(self, rank_seconds: float) -> CpuUse:
        """What was used since then, ``rank_seconds`` of it by the ranks."""
        elapsed = time.monotonic() - self._began
        return CpuUse(os.cpu_count() or 1, (_busy_seconds() - self._busy) / elapsed, rank_seconds / elapsed)


def stolen_seconds() -> float:
    """Processor time, summed over the cores, that this machine wanted and its hypervisor gave to others."""
    return _fields()[_STEAL_FIELD] / _TICKS_PER_SECOND


def _busy_seconds() -> float:
    fields = _fields()
    return (sum(fields) - sum(fields[index] for index in _IDLE_FIELDS)) / _TICKS_PER_SECOND


def _fields() -> list[int]:
    return [int(text) for text in Path("/proc/stat").read_text().split()[1 : 1 + _KNOWN_FIELDS]]
