"""What the early timeout (tC and x) saves, in virtual time: the same networks with it and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from ..page.figure import Figure
from ..page.parts import Rows, Verdict
from .sim_bursts import Neighbour
from .sim_environment import RANKS, Environment
from .sim_loop import Loop, run_loop
from .sim_numbers import Summary, spread_series, summary
from .sim_repeats import Repeats
from .study import Advance, Findings, Settings, Study

_PAPER_MINUTES = (130, 112)  # VGG-19 without and with it, both at 0.02 % loss
_PAPER_SAVES = 1 - _PAPER_MINUTES[1] / _PAPER_MINUTES[0]
_NOTICEABLE_SAVING = 0.01
_EQUAL_LOSS = 1.25  # at most so much more loss, and a hundredth of a percent, is the same loss
_LITTLE_LOSS = 1e-4

_SPEED, _DELAY, _QUEUE = 2e8, 50e-6, 128 * 1024  # the queue is 5 ms of the port
_ENVIRONMENTS = (
    Environment("random loss", _SPEED, _DELAY, _QUEUE, loss=2e-4),
    Environment("short bursts", _SPEED, _DELAY, _QUEUE, neighbour=Neighbour(5e-3, 0.1, 4e8)),
    Environment("long bursts", _SPEED, _DELAY, _QUEUE, neighbour=Neighbour(0.2, 0.4, 1.8e8)),
)
_PAPERS, _OURS = "papers", "ours"
_TRANSPORTS: Mapping[str, dict[str, Any]] = {
    _PAPERS: {"repair": False, "late_repair": False, "shuffle": False},
    _OURS: {},
}


@dataclass(frozen=True)
class _Plan:
    environments: Sequence[Environment]
    seeds: int
    measured: int
    settling: int
    elements: int

    def loop(self, ends_early: bool) -> Loop:
        return Loop(self.measured, self.settling, self.elements, compute_seconds=0.1, ends_early=ends_early)

    @property
    def units(self) -> float:
        """Operations."""
        runs = len(self.environments) * len(_TRANSPORTS) * 2 * self.seeds
        return float(runs * (self.measured + self.settling))


def _plan(settings: Settings) -> _Plan:
    if settings.quick:
        return _Plan(_ENVIRONMENTS[:1], settings.seeds or 1, measured=6, settling=24, elements=64 * 1024)
    # x starts at 0.5 and loses 3 % with each operation: after 100 it has settled.
    return _Plan(_ENVIRONMENTS, settings.seeds or 3, measured=100, settling=100, elements=512 * 1024)


@dataclass(frozen=True)
class Pair:
    """The two sides in one environment, with the same seeds."""

    environment: str
    transport: str
    on: Repeats
    off: Repeats

    @property
    def saves(self) -> Summary:
        """The share of the time that the early timeout saves, seed by seed."""
        pairs = zip(self.on.runs, self.off.runs, strict=True)
        return summary([1 - fmean(on.seconds) / fmean(off.seconds) for on, off in pairs])

    @property
    def saves_clearly(self) -> bool:
        """By more than seeds differ."""
        return self.saves.mean > max(_NOTICEABLE_SAVING, 2 * self.saves.error)

    @property
    def saves_of_first_bound(self) -> float:
        """The same, if all operations without it ended at the deadline that the warm-up left."""
        return 1 - self.on.seconds.mean / self.on.first_bound

    @property
    def equal_loss(self) -> bool:
        """Whether it costs no more loss."""
        return self.on.lost.mean <= self.off.lost.mean * _EQUAL_LOSS + _LITTLE_LOSS


def run(settings: Settings, advance: Advance) -> Findings:
    """Every environment with both transports, on and off."""
    plan = _plan(settings)
    pairs = []
    for environment in plan.environments:
        for transport in _TRANSPORTS:
            on, off = (_side(plan, environment, transport, early, advance) for early in (True, False))
            pairs.append(Pair(environment.name, transport, on, off))
    return _findings(plan, pairs)


def _side(
    plan: _Plan, environment: Environment, transport: str, ends_early: bool, advance: Advance
) -> Repeats:
    note = f"{environment.name}, {transport}, early timeout {'on' if ends_early else 'off'}"
    runs = []
    for seed in range(plan.seeds):
        network = environment.network(seed, **_TRANSPORTS[transport])
        runs.append(run_loop(network, plan.loop(ends_early), partial(advance, note)))
    return Repeats(runs)


def _findings(plan: _Plan, pairs: Sequence[Pair]) -> Findings:
    return Findings(
        tables=[_table(pairs)],
        figures=[_figure(plan, pairs, transport) for transport in _TRANSPORTS],
        verdicts=_verdicts(pairs),
        data={"plan": asdict(plan), "pairs": [_pair_data(pair) for pair in pairs]},
        notes=(
            f"{RANKS} ranks in virtual time, ports of {_SPEED / 1e6:.0f} Mbit/s with queues of "
            f"{_QUEUE // 1024} KiB, buckets of {plan.elements * 4 / 2**20:g} MiB, {plan.seeds} seeds of "
            f"{plan.measured} operations after {plan.settling} to settle. Spreads are standard deviations "
            "between seeds.",
            "There is no setting that switches the early timeout off: operations with patience_bytes do not "
            "end early, and one byte of it is used for that. They also do not hurry when most ranks are "
            "through.",
            "Papers' transport: nothing sent again, packets in the order of memory; its deadlines, its early "
            "timeout and its flow control are ours.",
        ),
    )


def _verdicts(pairs: Sequence[Pair]) -> list[Verdict]:
    papers = [pair for pair in pairs if pair.transport == _PAPERS]
    ours = [pair for pair in pairs if pair.transport == _OURS]
    claim = "The early timeout saves time at equal loss"
    found = [
        _verdict(f"{claim}: papers' transport, random loss", papers[:1], _growing_deadline(papers[:1])),
        _verdict(
            f"{claim}: papers' transport, bursts",
            papers[1:],
            f"{_growing_deadline(papers[1:])} In long bursts our way to switch it off also keeps ranks from "
            "hurrying after others: which of the two makes the difference this study cannot tell.",
        ),
        _verdict(f"{claim}: our transport", ours, "With repair nearly nothing is left to wait for."),
    ]
    return [verdict for verdict in found if verdict.ours]


def _verdict(claim: str, pairs: Sequence[Pair], note: str) -> Verdict:
    early = ", ".join(f"{pair.on.early_share:.0%}" for pair in pairs)
    return Verdict(
        claim=claim,
        paper=f"{_PAPER_MINUTES[0]} to {_PAPER_MINUTES[1]} minutes ({_PAPER_SAVES:.0%}), 0.02 % lost in both",
        ours="; ".join(_in_words(pair) for pair in pairs),
        holds=all(pair.saves_clearly and pair.equal_loss for pair in pairs),
        note=f"Ended early: {early} of all ends. Ours is the time of the all-reduce, the paper's that of "
        f"training. {note}",
    )


def _growing_deadline(pairs: Sequence[Pair]) -> str:
    saves = ", ".join(f"{pair.environment} {pair.saves_of_first_bound:+.0%}" for pair in pairs)
    return (
        "Much of it is our deadline, which is learned from operations that waited and grows without an early "
        "end, where the paper's is fixed after the warm-up. Had every operation waited for the deadline of "
        f"the warm-up and no longer, the early timeout would save: {saves}."
    )


def _in_words(pair: Pair) -> str:
    lost = f"lost {pair.on.lost.mean:.3%} with, {pair.off.lost.mean:.3%} without"
    return f"{pair.environment} {pair.saves.mean:+.1%} ± {pair.saves.spread:.1%}, {lost}"


def _table(pairs: Sequence[Pair]) -> Rows:
    columns = "network,transport,early timeout,mean ms,p99 ms,lost,ended early,tB ms,saves"
    return Rows(
        "All-reduce time with and without the early timeout",
        columns.split(","),
        [row for pair in pairs for row in _rows(pair)],
    )


def _rows(pair: Pair) -> list[list[str]]:
    saves = f"{pair.saves.mean:+.1%} ± {pair.saves.spread:.1%}"
    return [_row(pair, "on", pair.on, saves), _row(pair, "off", pair.off, "")]


def _row(pair: Pair, name: str, side: Repeats, saves: str) -> list[str]:
    return [
        pair.environment,
        pair.transport,
        name,
        f"{side.seconds.mean * 1e3:.1f} ± {side.seconds.spread * 1e3:.1f}",
        f"{side.p99.mean * 1e3:.1f} ± {side.p99.spread * 1e3:.1f}",
        f"{side.lost.mean:.3%}",
        f"{side.early_share:.0%}",
        f"{side.first_bound * 1e3:.0f} to {side.last_bound * 1e3:.0f}",
        saves,
    ]


def _figure(plan: _Plan, pairs: Sequence[Pair], transport: str) -> Figure:
    mine = [pair for pair in pairs if pair.transport == transport]
    places = list(range(len(mine)))
    return Figure(
        f"early-timeout-{transport}",
        f"All-reduce time with and without the early timeout, {transport}",
        "network",
        "mean time, ms",
        [
            spread_series("with", places, [pair.on.seconds for pair in mine], scale=1e3),
            spread_series("without", places, [pair.off.seconds for pair in mine], scale=1e3),
        ],
        kind="bars",
        categories=[pair.environment for pair in mine],
        caption=f"{RANKS} ranks, {plan.elements * 4 / 2**20:g} MiB, virtual time; mean and standard "
        f"deviation of {plan.seeds} seeds of {plan.measured} operations.",
    )


def _pair_data(pair: Pair) -> dict[str, Any]:
    return {
        "environment": pair.environment,
        "transport": pair.transport,
        "saves": asdict(pair.saves),
        "on": [asdict(measured) for measured in pair.on.runs],
        "off": [asdict(measured) for measured in pair.off.runs],
    }


STUDY = Study(
    name="early-timeout",
    title="The early timeout",
    question="The papers' early timeout takes VGG-19 from 130 to 112 minutes at the same 0.02 % loss. Here "
    "the protocol runs in virtual time with it and without, in the same networks.",
    needs_lab=False,
    units=lambda settings: _plan(settings).units,
    run=run,
)
