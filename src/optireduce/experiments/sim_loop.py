"""A training loop in virtual time: the same all-reduce again and again, with some computing in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from ..simulation import Network, Operation, Simulation

_AT_ONCE = 20  # operations that are handed over together; in between all ranks wait for each other
_ENDS = ("complete", "early", "deadline")

Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Loop:
    """What every operation is. Gradients are zeros: only what becomes of the packets counts."""

    measured: int
    """Operations that count."""
    settling: int
    """Operations before them, the warm-up included: what adapts needs some time."""
    elements: int
    compute_seconds: float
    """Between two operations."""
    ends_early: bool = True
    """False: what is missing is waited for until the deadline."""

    @property
    def operations(self) -> int:
        """In all."""
        return self.settling + self.measured

    def operation(self, arrays: Sequence[Array], first: bool) -> Operation:
        """One of them; the first one of a run begins with it, others follow the one before."""
        return Operation(
            arrays,
            "mean",
            start_seconds=[self.compute_seconds] * len(arrays) if first else None,
            follows_seconds=None if first else self.compute_seconds,
            bounded=True,
            # Operations with patience do not end early. One byte of it changes the deadline by nothing.
            patience_bytes=0 if self.ends_early else 1,
        )


@dataclass
class Measured:
    """What became of the operations that count."""

    seconds: list[float] = field(default_factory=list)
    """Of the slowest rank."""
    lost: list[float] = field(default_factory=list)
    """Share of what had to travel that did not come in time."""
    repaired: list[float] = field(default_factory=list)
    """Share of what had to travel that was sent again."""
    closed_by: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0))
    """How often each of these ended it, once for each rank."""
    incast: list[float] = field(default_factory=list)
    """The mean over the ranks, as these three."""
    window_bytes: list[float] = field(default_factory=list)
    early_fraction: list[float] = field(default_factory=list)
    bound_seconds: list[float] = field(default_factory=list)
    """The hard deadline, the longest of all ranks."""
    first_bound_seconds: float = 0.0
    """The same of the first operation that had one: as the warm-up left it."""


def run_loop(network: Network, loop: Loop, advance: Callable[[int], None]) -> Measured:
    """All operations; ``advance`` hears how many more are done."""
    simulation, measured = Simulation(network), Measured()
    arrays = [np.zeros(loop.elements, np.float32) for _ in range(network.ranks)]
    for done in range(0, loop.operations, _AT_ONCE):
        count = min(loop.operations - done, _AT_ONCE)
        rows = simulation.run([loop.operation(arrays, first=number == 0) for number in range(count)])
        reports = [[_checked(report) for report in row] for row in rows]
        measured.first_bound_seconds = measured.first_bound_seconds or _first_bound(reports)
        for row in reports[max(0, loop.settling - done) :]:
            note(measured, row)
        advance(count)
    _check_bursts_lasted(network, simulation.now_seconds)
    return measured


def note(measured: Measured, reports: Sequence[_core.Report]) -> None:
    """Add one operation, from the reports of all ranks."""
    travels = travelling_bytes(len(reports), reports[0].bytes)
    measured.seconds.append(max(report.elapsed_seconds for report in reports))
    measured.lost.append(missing_bytes(reports) / travels)
    measured.repaired.append(sum(report.repaired_bytes for report in reports) / travels)
    for report in reports:
        measured.closed_by[report.closed_by] += 1
    measured.incast.append(fmean(report.incast for report in reports))
    measured.window_bytes.append(fmean(report.window_bytes for report in reports))
    measured.early_fraction.append(fmean(report.early_fraction for report in reports))
    measured.bound_seconds.append(max(report.bound_seconds for report in reports))


def _first_bound(rows: Sequence[Sequence[_core.Report]]) -> float:
    """0 while the warm-up lasts."""
    bounds = (max(report.bound_seconds for report in reports) for reports in rows)
    return next((bound for bound in bounds if bound > 0), 0.0)


def travelling_bytes(ranks: int, bucket_bytes: int) -> int:
    """What all ranks together wait for: in each of two stages (ranks - 1) times the bucket."""
    return 2 * (ranks - 1) * bucket_bytes


def missing_bytes(reports: Sequence[_core.Report]) -> int:
    """Of both stages and all ranks."""
    return sum(count for report in reports for _stage, _whose, _first, count in report.holes)


def _check_bursts_lasted(network: Network, now_seconds: float) -> None:
    bursts = list(network.backgrounds)
    if bursts and bursts[-1].end_seconds < now_seconds:
        raise RuntimeError(f"bursts ended before the loop, at {now_seconds:.0f} s: the rest was quiet")


def _checked(report: _core.Report | None) -> _core.Report:
    if report is None or report.error_code != 0:
        raise RuntimeError(f"a simulated operation failed: {report.error if report else 'no report'}")
    return report
