"""The poster's third plot: what is gained by not waiting for the slowest share of the data."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from ..lab import Lab
from ..page.figure import Figure, Series
from ..page.parts import Rows, Verdict
from ..trials.allreduce.comparison import Comparison, figures
from ..trials.allreduce.plan import GLOO, SYSTEMS, System
from .lab_runs import BLOCK, RATE, Network
from .lab_spread import NOTE, Interval, interval
from .study import Advance, Findings, Settings, Study

_ENVIRONMENT = "tail3"
_BOUNDS = (1.2, 1.4, 1.7, 2.5)  # of Config.bound_most: tighter deadlines drop more
_EXACT, _CARRIED = "no deadline", "carried"
_ITERATIONS = 150
_FEW_PERCENT = 0.05
_SEED = 1


def run(settings: Settings, advance: Advance) -> Findings:
    """Best effort with several deadlines, carried contributions, no deadline, and Gloo, in turn."""
    bounds = _bounds(settings)
    systems = (
        SYSTEMS[GLOO],
        System(_EXACT, {"bounded": False}),
        System(_CARRIED),
        *(System(_name(bound), _best_effort(bound)) for bound in bounds),
    )
    with Lab(hosts=_hosts(settings), rate=RATE) as lab:
        network = Network(lab, [_environment(settings)])
        found = network.compare(_environment(settings), systems, _iterations(settings), _SEED, advance)
    points = [_point(found, name) for name in (_EXACT, _CARRIED, *map(_name, bounds))]
    return Findings(
        tables=[_table(points)],
        figures=[_figure(points, settings)],
        verdicts=[_verdict(points)],
        data={"points": points, "figures": [asdict(figures(*item)) for item in found.systems.items()]},
        notes=(
            f"{_iterations(settings)} all-reduces of 4 MiB for each deadline, in blocks that take turns, "
            f"{_hosts(settings)} hosts. The poster drops the slowest x %; here deadlines are set and the "
            "share that misses them is measured. With best effort it is lost; carried means that it is added "
            "to the next operation, within the default limit.",
            NOTE,
            *network.notes.values(),
        ),
    )


def _point(found: Comparison, name: str) -> dict[str, Any]:
    row = figures(name, found.systems[name])
    return {
        "deadline": name,
        "lost": row.missing_mean,
        "mean": row.mean,
        "p99": row.p99,
        "speedup_to_gloo": _speedup(found, GLOO, name),
        "speedup_to_exact": _speedup(found, _EXACT, name),
    }


def _speedup(found: Comparison, slow: str, fast: str) -> tuple[float, Interval]:
    """One mean over the other, and where it would lie if the run were repeated."""
    slower, faster = (fmean(found.systems[name].seconds()) for name in (slow, fast))
    return slower / faster, interval(found, BLOCK, lambda of: fmean(of(slow)) / fmean(of(fast)))


def _with_interval(speedup: tuple[float, Interval]) -> str:
    return f"{speedup[0]:.2f} {speedup[1].text()}"


def _table(points: list[dict[str, Any]]) -> Rows:
    header = ("deadline", "missed it", "mean", "p99", "Gloo's mean / this", "no deadline's mean / this")
    lines = [
        (
            point["deadline"],
            f"{point['lost']:.2%}",
            f"{point['mean'] * 1e3:.0f} ms",
            f"{point['p99'] * 1e3:.0f} ms",
            _with_interval(point["speedup_to_gloo"]),
            _with_interval(point["speedup_to_exact"]),
        )
        for point in points
    ]
    return Rows("What deadlines drop and gain", header, lines)


def _figure(points: list[dict[str, Any]], settings: Settings) -> Figure:
    ordered = sorted(_dropping(points), key=lambda point: float(point["lost"]))
    dropped = [100 * point["lost"] for point in ordered]
    return Figure(
        "tail-drop-speedup",
        f"{_environment(settings)}: speed-up by dropping what comes late",
        "dropped, % of the gradient",
        "speed-up of the mean all-reduce",
        [
            _curve("against Gloo", dropped, [point["speedup_to_gloo"] for point in ordered]),
            _curve("against no deadline", dropped, [point["speedup_to_exact"] for point in ordered]),
        ],
        caption=f"{_iterations(settings)} all-reduces of 4 MiB for each point; bands: nine of ten "
        "repetitions, by drawing rounds anew.",
    )


def _curve(name: str, dropped: list[float], speedups: list[tuple[float, Interval]]) -> Series:
    means, spreads = zip(*speedups, strict=True)
    return Series(
        name, dropped, means, [spread.low for spread in spreads], [spread.high for spread in spreads]
    )


def _verdict(points: list[dict[str, Any]]) -> Verdict:
    """By the deadline that drops most without dropping more than a few percent, not by the luckiest one."""
    few = [point for point in _dropping(points) if point["lost"] <= _FEW_PERCENT]
    most = max(few, key=lambda point: float(point["lost"]))
    return Verdict(
        "Dropping a few percent of the slowest data speeds steps up",
        "speed-up grows quickly over the first few percent",
        f"{_with_interval(most['speedup_to_exact'])} against no deadline, "
        f"{_with_interval(most['speedup_to_gloo'])} against Gloo, with {most['lost']:.2%} dropped",
        most["speedup_to_exact"][1].low > 1.0,
        "The poster gives no figures that can be read off; ResNet50 on 128 GPU nodes there.",
    )


def _dropping(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All but the row that carries instead of dropping."""
    return [point for point in points if point["deadline"] != _CARRIED]


def _name(bound: float) -> str:
    return f"{bound:g} times the usual"


def _best_effort(bound: float) -> dict[str, Any]:
    return {"delivery": "best-effort", "bound_most": bound, "bound_least": min(bound, 1.3)}


def _hosts(settings: Settings) -> int:
    return settings.hosts[0] if settings.hosts else 2 if settings.quick else 4


def _environment(settings: Settings) -> str:
    return settings.environments[0] if settings.environments else _ENVIRONMENT


def _bounds(settings: Settings) -> tuple[float, ...]:
    return _BOUNDS[:1] if settings.quick else _BOUNDS


def _iterations(settings: Settings) -> int:
    return 3 if settings.quick else _ITERATIONS


def _units(settings: Settings) -> float:
    return (3 + len(_bounds(settings))) * _iterations(settings)


STUDY = Study(
    name="tail-drop-speedup",
    title="Speed-up by dropping the tail",
    question="The poster's third plot: the slowest x % of the data is not waited for, and steps get faster.",
    needs_lab=True,
    units=_units,
    run=run,
)
