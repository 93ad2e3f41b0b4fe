"""What the papers' early timeout (tC and x) saves, in virtual time, with their best-effort transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ..page.figure import Figure
from ..page.parts import Rows, Verdict
from .sim_bursts import Neighbour
from .sim_environment import RANKS, Environment
from .sim_loop import Loop
from .sim_numbers import Summary, spread_series, summary
from .sim_repeats import RepeatPlan, Repeats
from .study import Advance, Findings, Settings, Study

_PAPER_MINUTES = (130, 112)  # VGG-19 without and with it, both at 0.02 % loss
_PAPER_SAVES = 1 - _PAPER_MINUTES[1] / _PAPER_MINUTES[0]
_NOTICEABLE_SAVING = 0.01

_SPEED, _DELAY, _QUEUE = 2e8, 50e-6, 128 * 1024  # the queue is 5 ms of the port
_ENVIRONMENTS = (
    Environment("random loss", _SPEED, _DELAY, _QUEUE, loss=2e-4),
    Environment("short bursts", _SPEED, _DELAY, _QUEUE, neighbour=Neighbour(5e-3, 0.1, 4e8)),
    Environment("long bursts", _SPEED, _DELAY, _QUEUE, neighbour=Neighbour(0.2, 0.4, 1.8e8)),
)


def _plan(settings: Settings) -> RepeatPlan:
    if settings.quick:
        loop = Loop(measured=6, settling=24, elements=64 * 1024, compute_seconds=0.1)
        return RepeatPlan(_ENVIRONMENTS[:1], settings.seeds or 1, loop)
    # x starts at 0.5 and loses 3 % with each operation: after 100 it has settled.
    loop = Loop(measured=100, settling=100, elements=512 * 1024, compute_seconds=0.1)
    return RepeatPlan(_ENVIRONMENTS, settings.seeds or 3, loop)


@dataclass(frozen=True)
class Cell:
    """One environment: a run for each seed."""

    environment: str
    repeats: Repeats

    @property
    def saves(self) -> Summary:
        """The share of the time that the early timeout saves, seed by seed."""
        return summary([1 - fmean(run.seconds) / fmean(run.without_early) for run in self.repeats.runs])

    @property
    def saves_clearly(self) -> bool:
        """By more than seeds differ."""
        return self.saves.mean > max(_NOTICEABLE_SAVING, 2 * self.saves.error)


def run(settings: Settings, advance: Advance) -> Findings:
    """Every environment."""
    plan = _plan(settings)
    return _findings(plan, [_cell(plan, environment, advance) for environment in plan.environments])


def _cell(plan: RepeatPlan, environment: Environment, advance: Advance) -> Cell:
    name = environment.name
    return Cell(name, plan.repeats(environment, name, advance, delivery="best-effort", shuffle=False))


def _findings(plan: RepeatPlan, cells: Sequence[Cell]) -> Findings:
    return Findings(
        tables=[_table(cells)],
        figures=[_figure(plan, cells)],
        verdicts=[_verdict(cells)],
        data={"plan": asdict(plan), "cells": [_cell_data(cell) for cell in cells]},
        notes=(
            f"{RANKS} ranks in virtual time, ports of {_SPEED / 1e6:.0f} Mbit/s with queues of "
            f"{_QUEUE // 1024} KiB, buckets of {plan.loop.elements * 4 / 2**20:g} MiB, {plan.seeds} seeds of "
            f"{plan.loop.measured} operations after {plan.loop.settling} to settle. Spreads are standard "
            "deviations between seeds.",
            "Without the early timeout, a rank that ended early would have waited for its deadline tB: that "
            "time is computed from the same runs. What more would have arrived until then is not known, so "
            "this study says nothing about equal loss.",
            "The transport is best-effort: nothing is sent again, packets go in the order of memory.",
        ),
    )


def _verdict(cells: Sequence[Cell]) -> Verdict:
    early = ", ".join(f"{cell.repeats.early_share:.0%}" for cell in cells)
    return Verdict(
        claim="The early timeout saves time",
        paper=f"{_PAPER_MINUTES[0]} to {_PAPER_MINUTES[1]} minutes ({_PAPER_SAVES:.0%}), 0.02 % lost in both",
        ours="; ".join(_in_words(cell) for cell in cells),
        holds=all(cell.saves_clearly for cell in cells),
        note=f"Ended early: {early} of all ends. Ours is the time of the all-reduce, the paper's that of "
        "training.",
    )


def _in_words(cell: Cell) -> str:
    lost = f"lost {cell.repeats.lost.mean:.3%}"
    return f"{cell.environment} {cell.saves.mean:+.1%} ± {cell.saves.spread:.1%}, {lost}"


def _table(cells: Sequence[Cell]) -> Rows:
    header = ("network", "mean ms", "p99 ms", "without it, mean ms", "saves", "ended early", "lost", "tB ms")
    return Rows("All-reduce time with and without the early timeout", header, [_row(cell) for cell in cells])


def _row(cell: Cell) -> list[str]:
    found = cell.repeats
    return [
        cell.environment,
        found.seconds.as_milliseconds,
        found.p99.as_milliseconds,
        found.without_early.as_milliseconds,
        f"{cell.saves.mean:+.1%} ± {cell.saves.spread:.1%}",
        f"{found.early_share:.0%}",
        f"{found.lost.mean:.3%}",
        f"{found.deadline * 1e3:.0f}",
    ]


def _figure(plan: RepeatPlan, cells: Sequence[Cell]) -> Figure:
    places = list(range(len(cells)))
    return Figure(
        "early-timeout",
        "All-reduce time with and without the early timeout",
        "network",
        "mean time, ms",
        [
            spread_series("with", places, [cell.repeats.seconds for cell in cells], scale=1e3),
            spread_series("without", places, [cell.repeats.without_early for cell in cells], scale=1e3),
        ],
        kind="bars",
        categories=[cell.environment for cell in cells],
        caption=plan.caption,
    )


def _cell_data(cell: Cell) -> dict[str, Any]:
    return {
        "environment": cell.environment,
        "saves": asdict(cell.saves),
        "runs": [asdict(measured) for measured in cell.repeats.runs],
    }


STUDY = Study(
    name="early-timeout",
    title="The early timeout",
    question="The papers' early timeout takes VGG-19 from 130 to 112 minutes at the same 0.02 % loss. Here "
    "their transport runs in virtual time, and its times are compared with those of its deadlines.",
    needs_lab=False,
    units=lambda settings: _plan(settings).operations,
    run=run,
)
