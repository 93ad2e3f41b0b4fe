"""Flat all-reduces against grids of ranks, by their number: how long one takes in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean

from ..grid import rows_for
from ..page.figure import Figure, Series
from ..page.parts import Rows, Verdict
from .sim_loop import Loop, Measured, run_loop
from .simulated_network import Link, Network, Port
from .study import Advance, Findings, Settings, Study

_CLAIMED_AT = 256
_CLAIMED_SPEEDUP = 2.0
_MOST_FLAT = 256  # beyond it a flat group needs gigabytes and hours here
_LINK = Link(delay_seconds=50e-6, jitter_seconds=100e-6, spike=0.002, spike_seconds=1e-3)
_BITS_PER_SECOND = 10e9
_QUEUE_BYTES = 256 * 1024


@dataclass(frozen=True)
class _Plan:
    sizes: Sequence[int]
    seeds: int
    loop: Loop

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Ranks and rows, flat first."""
        return [(size, rows) for size in self.sizes for rows in _rows_tried(size)]

    @property
    def units(self) -> float:
        """Operations, each as many times as there are pairs of ranks that exchange."""
        return float(sum(_pairs(*case) for case in self.cases) * self.loop.operations * self.seeds)


def _rows_tried(size: int) -> list[int]:
    root = len(rows_for("auto", [str(rank) for rank in range(size)])) or round(size**0.5)
    return [1, root] if size <= _MOST_FLAT else [root]


def _pairs(ranks: int, rows: int) -> int:
    return ranks * (ranks - 1 if rows == 1 else 2 * (ranks // rows - 1) + rows - 1)


def _plan(settings: Settings) -> _Plan:
    if settings.quick:
        loop = Loop(measured=2, settling=1, elements=16 * 1024, compute_seconds=1e-3, bounded=False)
        return _Plan((16,), settings.seeds or 1, loop)
    loop = Loop(measured=4, settling=4, elements=256 * 1024, compute_seconds=1e-3, bounded=False)
    return _Plan((16, 64, 256, 1024), settings.seeds or 1, loop)


@dataclass(frozen=True)
class Cell:
    """One number of ranks in one form."""

    ranks: int
    rows: int
    runs: Sequence[Measured]

    @property
    def seconds(self) -> float:
        """The mean time of an operation, of its slowest rank."""
        return fmean(fmean(run.seconds) for run in self.runs)


def run(settings: Settings, advance: Advance) -> Findings:
    """Every number of ranks, flat and as a grid."""
    plan = _plan(settings)
    cells = [_cell(plan, ranks, rows, advance) for ranks, rows in plan.cases]
    return _findings(plan, cells)


def _cell(plan: _Plan, ranks: int, rows: int, advance: Advance) -> Cell:
    pairs = _pairs(ranks, rows)
    note = partial(advance, f"{ranks} ranks in {rows} rows")
    runs = [
        run_loop(_network(ranks, rows, seed), plan.loop, lambda done: note(done * pairs))
        for seed in range(plan.seeds)
    ]
    return Cell(ranks, rows, runs)


def _network(ranks: int, rows: int, seed: int) -> Network:
    return Network(
        ranks,
        seed=seed,
        groups=rows,
        link=_LINK,
        egress=Port(_BITS_PER_SECOND),
        ingress=Port(_BITS_PER_SECOND, _QUEUE_BYTES),
        coalesce=1.0,
        max_events=10**10,
    )


def speedup(cells: Sequence[Cell], ranks: int) -> float | None:
    """How many times faster the grid is; None where flat was not run."""
    times = {cell.rows == 1: cell.seconds for cell in cells if cell.ranks == ranks}
    return times[True] / times[False] if True in times else None


def _findings(plan: _Plan, cells: Sequence[Cell]) -> Findings:
    return Findings(
        tables=[_table(cells)],
        figures=[_figure(plan, cells)],
        verdicts=[_verdict(plan, cells)],
        data={"plan": asdict(plan), "cells": [asdict(cell) for cell in cells]},
        notes=(
            f"Virtual time, {plan.seeds} seeds, buckets of {plan.loop.elements * 4 / 2**20:g} MiB, "
            f"{plan.loop.measured} operations after {plan.loop.settling}, all exact. "
            f"{_BITS_PER_SECOND / 1e9:g} Gbit/s ports with queues of {_QUEUE_BYTES // 1024} "
            f"KiB, 50 to 150 µs one way; 0.2 % of all batches of packets meet a link that stands still "
            f"for 1 ms.",
            "Hosts cost nothing here: no system calls, no interrupts, no memory traffic. A flat rank has as "
            "many of them as there are ranks, which these tables do not show.",
            f"Flat groups of more than {_MOST_FLAT} ranks are not run: they take hours and gigabytes here.",
        ),
    )


def _verdict(plan: _Plan, cells: Sequence[Cell]) -> Verdict:
    ranks = max(size for size in plan.sizes if size <= _MOST_FLAT)
    found = speedup(cells, ranks) or 0.0
    return Verdict(
        claim="Rows and columns scale better than one flat group",
        paper="2 (N/G - 1) + (G - 1) rounds instead of 2 (N - 1)",
        ours=f"{found:.1f} times as fast as flat at {ranks} ranks",
        holds=ranks == _CLAIMED_AT and found >= _CLAIMED_SPEEDUP,
        note=f"We ask for {_CLAIMED_SPEEDUP:g} times at {_CLAIMED_AT} ranks. Rounds are not one after the "
        "other here, so that their number is not the time. A grid passes four delays instead of two; what "
        "it saves is what many senders at once do to a port.",
    )


def _table(cells: Sequence[Cell]) -> Rows:
    header = ["ranks", "rows", "mean ms", "slowest ms", "sent again", "grid is faster by"]
    return Rows("All-reduce time by number of ranks", header, [_row(cells, cell) for cell in cells])


def _row(cells: Sequence[Cell], cell: Cell) -> list[str]:
    found = speedup(cells, cell.ranks) if cell.rows > 1 else None
    return [
        str(cell.ranks),
        "flat" if cell.rows == 1 else str(cell.rows),
        f"{cell.seconds * 1e3:.2f}",
        f"{max(max(run.seconds) for run in cell.runs) * 1e3:.2f}",
        f"{fmean(fmean(run.repaired) for run in cell.runs):.2%}",
        f"{found:.2f} times" if found else "",
    ]


def _figure(plan: _Plan, cells: Sequence[Cell]) -> Figure:
    return Figure(
        "grid-scale",
        "All-reduce time by number of ranks",
        "ranks",
        "ms",
        [
            _series("flat", [cell for cell in cells if cell.rows == 1]),
            _series("grid", [cell for cell in cells if cell.rows > 1]),
        ],
        kind="points",
        x_log=True,
        caption=f"{plan.loop.elements * 4 / 2**20:g} MiB, virtual time; mean of {plan.seeds} seeds of "
        f"{plan.loop.measured} operations.",
    )


def _series(name: str, cells: Sequence[Cell]) -> Series:
    return Series(name, [cell.ranks for cell in cells], [cell.seconds * 1e3 for cell in cells])


STUDY = Study(
    name="grid-scale",
    title="Many ranks, flat and in rows and columns",
    question="The papers' 2D form needs 2 (N/G - 1) + (G - 1) rounds instead of 2 (N - 1). Here groups of up "
    "to 1,024 ranks reduce the same bucket in both forms, in virtual time and on a network with a tail.",
    needs_lab=False,
    units=lambda settings: _plan(settings).units,
    run=run,
)
