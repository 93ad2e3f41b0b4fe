"""How many senders at once a receiver should take: fixed numbers against the one that adapts.

Senders here do not take turns: a receiver that takes I of 7 senders lets each have I/7 of its window under
way. So a fixed incast is a fixed largest window; the dynamic one is what the protocol does by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from ..page.figure import Figure, Series
from ..page.parts import Rows, Verdict
from .sim_bursts import Neighbour
from .sim_environment import RANKS, Environment
from .sim_loop import Loop
from .sim_numbers import spread_series
from .sim_repeats import RepeatPlan, Repeats
from .study import Advance, Findings, Settings, Study

_PAPER_SAVES = 0.21  # of the average latency
_NEAR = 0.5  # at least half of that is about the same

_ALL = RANKS - 1
_WINDOW_BYTES = 1024 * 1024 // _ALL  # the most that the protocol has under way to one of 7 peers
_DYNAMIC, _ONE = "dynamic", "1"
_WINDOWS: Mapping[str, int] = {str(senders): _WINDOW_BYTES * senders // _ALL for senders in (1, 2, 4)} | {
    _DYNAMIC: _WINDOW_BYTES
}
_QUEUE = 256 * 1024
_ENVIRONMENTS = (
    Environment("near, quiet", 2e8, 50e-6, _QUEUE),
    Environment("near, bursts", 2e8, 50e-6, _QUEUE, neighbour=Neighbour(0.2, 0.4, 1.8e8)),
    Environment("far, quiet", 1e9, 1e-3, _QUEUE),
    Environment("far, bursts", 1e9, 1e-3, _QUEUE, neighbour=Neighbour(0.2, 0.4, 9e8)),
)


def _plan(settings: Settings) -> RepeatPlan:
    if settings.quick:
        loop = Loop(measured=6, settling=24, elements=64 * 1024, compute_seconds=0.05)
        return RepeatPlan(_ENVIRONMENTS[2:], settings.seeds or 1, loop)
    loop = Loop(measured=100, settling=40, elements=512 * 1024, compute_seconds=0.1)
    return RepeatPlan(_ENVIRONMENTS, settings.seeds or 3, loop)


@dataclass(frozen=True)
class Cell:
    """One incast in one environment: a run for each seed."""

    environment: str
    incast: str
    repeats: Repeats


def run(settings: Settings, advance: Advance) -> Findings:
    """Every incast in every environment."""
    plan = _plan(settings)
    cells = [
        _cell(plan, environment, incast, advance) for environment in plan.environments for incast in _WINDOWS
    ]
    return _findings(plan, cells)


def _cell(plan: RepeatPlan, environment: Environment, incast: str, advance: Advance) -> Cell:
    note = f"{environment.name}, incast {incast}"
    repeats = plan.repeats(environment, note, advance, window_bytes=_WINDOWS[incast])
    return Cell(environment.name, incast, repeats)


def saved(cells: Sequence[Cell], environment: str, against: str) -> float:
    """The share of the average latency that the dynamic incast saves against a fixed one."""
    times = {cell.incast: cell.repeats.seconds.mean for cell in cells if cell.environment == environment}
    return 1 - times[_DYNAMIC] / times[against]


def _findings(plan: RepeatPlan, cells: Sequence[Cell]) -> Findings:
    return Findings(
        tables=[_table(cells)],
        figures=[_figure(plan, cells, "mean"), _figure(plan, cells, "p99")],
        verdicts=[_verdict(plan, cells)],
        data={"plan": asdict(plan), "windows": dict(_WINDOWS), "cells": [asdict(cell) for cell in cells]},
        notes=(
            f"{RANKS} ranks in virtual time, buckets of {plan.loop.elements * 4 / 2**20:g} MiB, {plan.seeds} "
            f"seeds of {plan.loop.measured} operations after {plan.loop.settling} to settle; spreads are "
            f"standard deviations between seeds. Near: 200 Mbit/s and 50 µs; far: 1 Gbit/s and 1 ms; queues "
            f"of {_QUEUE // 1024} KiB.",
            "There is no setting for a fixed incast. One of 1, 2 and 4 is a largest window of so many "
            "sevenths, and what adapts goes on below it. A fixed incast of 7 is the dynamic one, which "
            "begins there and leaves it only when a tenth of an operation was sent again; how far it did is "
            "in the table.",
            "In the papers' rounds incast 1 means 14 rounds with a pause after each; here nobody waits for a "
            "round to end. So what a higher incast gains is only a window that fills the path.",
        ),
    )


def _verdict(plan: RepeatPlan, cells: Sequence[Cell]) -> Verdict:
    savings = {place.name: saved(cells, place.name, _ONE) for place in plan.environments}
    mean = fmean(savings.values())
    return Verdict(
        claim="Dynamic incast lowers average latency",
        paper=f"about {_PAPER_SAVES:.0%}",
        ours=f"{mean:+.1%} against incast {_ONE}, mean of {len(savings)} networks",
        holds=mean >= _PAPER_SAVES * _NEAR,
        note="Saved by network: "
        + ", ".join(f"{name} {value:+.1%}" for name, value in savings.items())
        + ". Where a window of incast 1 fills the path there is nothing to gain; where it does not, the gain "
        "is the time the path stood idle, which follows from the delay we chose: that it meets the paper's "
        "figure there is chance.",
    )


def _table(cells: Sequence[Cell]) -> Rows:
    header = ["network", "incast", "mean ms", "p99 ms", "missed the deadline", "advertised", "dynamic saves"]
    return Rows("All-reduce time by incast", header, [_row(cells, cell) for cell in cells])


def _row(cells: Sequence[Cell], cell: Cell) -> list[str]:
    fixed = cell.incast != _DYNAMIC
    return [
        cell.environment,
        cell.incast,
        cell.repeats.seconds.as_milliseconds,
        cell.repeats.p99.as_milliseconds,
        f"{cell.repeats.lost.mean:.3%} ± {cell.repeats.lost.spread:.3%}",
        f"{cell.repeats.incast:.2f}",
        f"{saved(cells, cell.environment, cell.incast):+.1%}" if fixed else "",
    ]


def _figure(plan: RepeatPlan, cells: Sequence[Cell], what: str) -> Figure:
    names = [place.name for place in plan.environments]
    return Figure(
        f"incast-{what}",
        f"All-reduce time by incast, {what}",
        "network",
        "ms",
        [_series(cells, incast, what) for incast in _WINDOWS],
        kind="bars",
        categories=names,
        caption=plan.caption,
    )


def _series(cells: Sequence[Cell], incast: str, what: str) -> Series:
    mine = [cell for cell in cells if cell.incast == incast]
    found = [cell.repeats.seconds if what == "mean" else cell.repeats.p99 for cell in mine]
    return spread_series(f"incast {incast}", list(range(len(found))), found, scale=1e3)


STUDY = Study(
    name="incast",
    title="Incast, fixed and dynamic",
    question="The papers' dynamic incast lowers average latency by about 21 %. Here receivers take a fixed "
    "number of senders' windows or adapt it, in quiet and bursty networks in virtual time.",
    needs_lab=False,
    units=lambda settings: len(_WINDOWS) * _plan(settings).operations,
    run=run,
)
