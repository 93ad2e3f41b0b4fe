"""The poster's first plot: how long all-reduces take, by algorithm and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from ..lab import Lab
from ..page.figure import Figure, cdf
from ..page.parts import Rows, Verdict
from ..page.quantiles import percentile
from ..trials.allreduce.comparison import Comparison, Figures, figures
from ..trials.allreduce.plan import GLOO, OURS, PAPERS, SYSTEMS, TAR_TCP
from .lab_runs import BLOCK, RATE, Network
from .lab_spread import NOTE, Interval, interval
from .study import Advance, Findings, Settings, Study

_SYSTEMS = tuple(SYSTEMS[name] for name in (GLOO, TAR_TCP, PAPERS, OURS))
_ENVIRONMENTS = ("quiet", "tail1.5", "tail3")
_ITERATIONS = 100
_SEED = 1

Found = Mapping[tuple[int, str], Comparison]  # by hosts and environment


def run(settings: Settings, advance: Advance) -> Findings:
    """All algorithms take turns in each environment."""
    found: dict[tuple[int, str], Comparison] = {}
    notes: list[str] = []
    for hosts in _hosts(settings):
        with Lab(hosts=hosts, rate=RATE) as lab:
            network = Network(lab, _environments(settings))
            for name in _environments(settings):
                found[hosts, name] = network.compare(name, _SYSTEMS, _iterations(settings), _SEED, advance)
            notes += network.notes.values()
    return Findings(
        tables=[_table(hosts, name, result) for (hosts, name), result in found.items()],
        figures=[_figure(hosts, name, result) for (hosts, name), result in found.items()],
        verdicts=list(_verdicts(found)),
        data={f"{name} {hosts}": _as_json(result) for (hosts, name), result in found.items()},
        notes=(
            f"{_iterations(settings)} all-reduces of 4 MiB of each algorithm, in blocks that take turns; "
            f"the slowest rank counts; links of {RATE}, switch buffers of 256 KiB, TCP with cubic.",
            NOTE,
            *notes,
        ),
    )


def _rows(result: Comparison) -> list[Figures]:
    return [figures(name, measured) for name, measured in result.systems.items()]


def _table(hosts: int, environment: str, result: Comparison) -> Rows:
    header = ("algorithm", "p50", "p90", "p99", "max", "P99/P50", "missing", "MB sent a rank", "CPU s")
    lines = [
        (
            row.system,
            *(f"{seconds * 1e3:.0f} ms" for seconds in (row.p50, row.p90, row.p99, row.most)),
            f"{row.tail:.2f} {_tail_interval(result, row.system).text()}",
            f"{row.missing_mean:.2%}",
            f"{row.sent_bytes / 1e6:.2f}",
            f"{row.cpu_seconds:.2f}",
        )
        for row in _rows(result)
    ]
    return Rows(f"{environment}, {hosts} hosts", header, lines)


def _tail_interval(result: Comparison, system: str) -> Interval:
    return interval(result, BLOCK, lambda of: percentile(of(system), 0.99) / median(of(system)))


def _figure(hosts: int, environment: str, result: Comparison) -> Figure:
    curves = [cdf(name, measured.seconds()) for name, measured in result.systems.items()]
    return Figure(
        f"all-reduce-{environment}-{hosts}",
        f"{environment}, {hosts} hosts: time of an all-reduce",
        "seconds",
        "share of all-reduces",
        curves,
        caption=f"{len(curves[0].x)} all-reduces of 4 MiB of each algorithm.",
    )


def _verdicts(found: Found) -> Iterator[Verdict]:
    """The papers' point in one number: P99/P50 of ours where Gloo's is 1.5 or 3."""
    for (hosts, environment), result in found.items():
        rows = {row.system: row for row in _rows(result)}
        if environment.startswith("tail"):
            gloo, ours = rows[GLOO], rows[OURS]
            yield Verdict(
                f"{environment}, {hosts} hosts: the tail of all-reduce times is cut",
                "a bounded tail where TCP's is not",
                f"P99/P50 {ours.tail:.2f} (Gloo {gloo.tail:.2f}), p99 {ours.p99 / gloo.p99:.2f} of Gloo's",
                ours.tail < gloo.tail and ours.p99 < gloo.p99,
            )


def _as_json(result: Comparison) -> dict[str, Any]:
    return {
        row.system: asdict(row) | {"seconds": measured.seconds(), "missing": measured.missing_shares()}
        for row, measured in zip(_rows(result), result.systems.values(), strict=True)
    }


def _hosts(settings: Settings) -> tuple[int, ...]:
    return settings.hosts or ((2,) if settings.quick else (4,))


def _environments(settings: Settings) -> tuple[str, ...]:
    return settings.environments or (("tail3",) if settings.quick else _ENVIRONMENTS)


def _iterations(settings: Settings) -> int:
    return 3 if settings.quick else _ITERATIONS


def _units(settings: Settings) -> float:
    runs = len(_hosts(settings)) * len(_environments(settings)) * len(_SYSTEMS)
    return runs * _iterations(settings)


STUDY = Study(
    name="tail-cdf",
    title="The tail of all-reduce times",
    question="The poster's first plot: the distribution of step times by all-reduce algorithm. Those over "
    "TCP inherit the network's tail, bounded ones do not.",
    needs_lab=True,
    units=_units,
    run=run,
)
