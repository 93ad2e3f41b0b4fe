"""A training loop in virtual time: the same all-reduce again and again, with some computing in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from .simulated_network import Network
from .simulation import Operation, Simulation

_AT_ONCE = 20  # operations that are handed over together; in between all ranks wait for each other
_ENDS = ("complete", "early", "deadline")
_STREAM = 1  # of all operations: they are on one bucket

Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Loop:
    """What every operation is. Gradients are zeros: only what becomes of the packets counts."""

    measured: int
    """Operations that count."""
    settling: int
    """Operations before them: what adapts needs some time."""
    elements: int
    compute_seconds: float
    """Between two operations."""
    bounded: bool = True
    """Whether operations have a deadline."""

    @property
    def operations(self) -> int:
        """In all."""
        return self.settling + self.measured

    def operation(self, arrays: Sequence[Array], step: int, first: bool) -> Operation:
        """One of them; the first one of a run begins with it, others follow the one before."""
        return Operation(
            arrays,
            "mean",
            start_seconds=[self.compute_seconds] * len(arrays) if first else None,
            follows_seconds=None if first else self.compute_seconds,
            bounded=self.bounded,
            stream=_STREAM if self.bounded else 0,
            step=step,
        )


@dataclass
class Measured:
    """What became of the operations that count."""

    seconds: list[float] = field(default_factory=list)
    """Of the slowest rank."""
    lost: list[float] = field(default_factory=list)
    """Share of what had to travel that did not come in time: excluded contributions or, with best effort,
    whatever is missing in both stages."""
    repaired: list[float] = field(default_factory=list)
    """Share of what had to travel that was sent again."""
    closed_by: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0))
    """How often each of these ended it, once for each rank."""
    incast: list[float] = field(default_factory=list)
    """The mean over the ranks, as these three."""
    window_bytes: list[float] = field(default_factory=list)
    early_fraction: list[float] = field(default_factory=list)
    deadline_seconds: list[float] = field(default_factory=list)
    """The longest of all ranks."""
    without_early: list[float] = field(default_factory=list)
    """As ``seconds``, if ranks that ended early had waited for their deadline."""


def run_loop(network: Network, loop: Loop, advance: Callable[[int], None]) -> Measured:
    """All operations; ``advance`` hears how many more are done."""
    simulation, measured = Simulation(network), Measured()
    arrays = [np.zeros(loop.elements, np.float32) for _ in range(network.ranks)]
    for done in range(0, loop.operations, _AT_ONCE):
        count = min(loop.operations - done, _AT_ONCE)
        steps = range(done, done + count)
        rows = simulation.run([loop.operation(arrays, step, first=step == done) for step in steps])
        reports = [[_checked(report) for report in row] for row in rows]
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
    measured.deadline_seconds.append(max(report.deadline_seconds for report in reports))
    measured.without_early.append(max(_without_early(report) for report in reports))


def _without_early(report: _core.Report) -> float:
    ended_early = report.closed_by == "early"
    return max(report.elapsed_seconds, report.deadline_seconds) if ended_early else report.elapsed_seconds


def travelling_bytes(ranks: int, bucket_bytes: int) -> int:
    """What all ranks together wait for: in each of two stages (ranks - 1) times the bucket."""
    return 2 * (ranks - 1) * bucket_bytes


def missing_bytes(reports: Sequence[_core.Report]) -> int:
    """Of both stages and all ranks. Exclusions are the same in all reports, holes are each rank's own."""
    excluded = sum(count for _rank, count in reports[0].excluded)
    return excluded + sum(count for report in reports for _stage, _peer, _begin, count in report.holes)


def _check_bursts_lasted(network: Network, now_seconds: float) -> None:
    bursts = list(network.backgrounds)
    if bursts and bursts[-1].end_seconds < now_seconds:
        raise RuntimeError(f"bursts ended before the loop, at {now_seconds:.0f} s: the rest was quiet")


def _checked(report: _core.Report | None) -> _core.Report:
    if report is None or report.error_code != 0:
        raise RuntimeError(f"a simulated operation failed: {report.error if report else 'no report'}")
    return report
