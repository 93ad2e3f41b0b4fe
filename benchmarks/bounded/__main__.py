"""The command line of the benchmark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from optireduce import Config, OptiReduceError, _core
from optireduce.cli.console import say
from optireduce.cli.errors import UsageError
from optireduce.cli.units import format_size, parse_size
from optireduce.lab import Lab
from optireduce.lab.shaping import bits_per_second

from . import table
from .comparison import compare, figures, limit_seconds
from .environments import ENVIRONMENTS, FAULTS, disturb
from .faults import aftermath, provoke
from .plan import OURS, Plan, System
from .processes import RankFailed
from .settings import competitors, parse_settings

_PAYLOAD_BYTES = 1_408  # of a packet that fits an MTU of 1,500
_FRAME_BYTES = 14 + 20 + 8 + int(getattr(_core, "HEADER_BYTES", 56)) + _PAYLOAD_BYTES


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    plan: Plan
    environment: str
    rate: str | None
    offload: bool
    seed: int

    def title(self) -> str:
        """Above the results."""
        packets = "" if self.offload else ", single packets"
        links = self.rate or "unshaped"
        return f"{self.environment}: {self.plan.hosts} hosts, {links}, {format_size(self.plan.size)}{packets}"


class Advance(Protocol):
    """Moves the progress bar."""

    def __call__(self, note: str, operations: int) -> None: ...


def run_comparison(lab: Lab, request: Request) -> dict[str, Any]:
    """All systems side by side; prints the table and returns everything as JSON values."""
    plan = request.plan
    with _bar(request) as advance:
        found = compare(lab, plan, lambda: disturb(lab, request.environment, request.seed), advance)
    rows = [figures(name, measured) for name, measured in found.systems.items()]
    limit = drops = None
    if request.rate is not None:
        limit = limit_seconds(plan, bits_per_second(request.rate), _FRAME_BYTES, _PAYLOAD_BYTES)
        drops = sum(lab.link(host).down.dropped_packets for host in range(plan.hosts))
    table.show_comparison(request.title(), rows, limit, drops)
    table.show_cpu(found.cpu)
    return {
        "limit_seconds": limit,
        "switch_drops": drops,
        "figures": [asdict(row) for row in rows],
        "cpu": None if found.cpu is None else asdict(found.cpu),
        "operations": {name: measured.operations for name, measured in found.systems.items()},
        "counters": {name: measured.counters for name, measured in found.systems.items()},
    }


def run_fault(lab: Lab, request: Request) -> dict[str, Any]:
    """Ours alone, with one rank stopped or killed; prints what the others noticed."""
    with _bar(request) as advance:
        incident = provoke(lab, request.plan, request.environment, advance)
    found = aftermath(incident, request.plan.warmup)
    say(request.title())
    table.show_incident(request.environment, incident, found)
    return {"aftermath": asdict(found), "incident": asdict(incident)}


@contextmanager
def _bar(request: Request) -> Iterator[Advance]:
    plan = request.plan
    systems = 1 if request.environment in FAULTS else len(plan.systems)
    with table.progress_bar() as progress:
        task = progress.add_task(request.environment, total=systems * plan.iterations, note="starting")

        def advance(note: str, operations: int) -> None:
            progress.update(task, advance=operations, note=note, refresh=True)

        yield advance


def main(
    environment: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(ENVIRONMENTS)}; quiet unless said, bursts with --frontier."),
    ] = None,
    hosts: Annotated[int, typer.Option(min=2, help="Ranks, each on a host of its own.")] = 4,
    rate: Annotated[str, typer.Option(help="Of every link, e.g. 200mbit; none: unshaped.")] = "200mbit",
    size: Annotated[str, typer.Option("--bytes", help="Of the float32 bucket.")] = "4M",
    iterations: Annotated[int, typer.Option(min=2, help="Timed operations of each system.")] = 100,
    block: Annotated[int, typer.Option(min=1, help="Operations of one system in a row.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Operations of ours before timing.")] = 25,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A field of Config, field=value; repeatable.")
    ] = None,
    frontier: Annotated[
        str | None, typer.Option(help="Ours once for each value: field=value,value,...")
    ] = None,
    offload: Annotated[
        bool, typer.Option(help="Let the kernel carry 64 KB as one packet; loss is then as coarse.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the bursts.")] = 1,
    output: Annotated[Path | None, typer.Option("--json", help="Write every time and report there.")] = None,
) -> None:
    """All-reduces on a noisy network: Gloo and optireduce side by side in network namespaces."""
    environment = environment or ("bursts" if frontier else "quiet")
    faulty = environment in FAULTS
    if environment not in ENVIRONMENTS:
        raise UsageError(f"--environment: {environment!r} is not one of {', '.join(ENVIRONMENTS)}")
    if faulty and frontier:
        raise UsageError(f"--frontier compares systems; --environment {environment} runs one: leave one out")
    own = parse_settings(settings or [])
    systems = (System(OURS, own),) if faulty else competitors(own, frontier)
    for system in systems:
        _check_settings(system)
    plan = Plan(systems, hosts, parse_size(size, "--bytes") // 4 * 4, iterations, block, warmup)
    request = Request(plan, environment, None if rate == "none" else rate, offload, seed)
    with Lab(hosts=hosts, rate=request.rate, offload=offload) as lab:
        result = (run_fault if faulty else run_comparison)(lab, request)
    if output is not None:
        output.write_text(json.dumps({"request": asdict(request)} | result) + "\n")


def _check_settings(system: System) -> None:
    """Before any process starts: a field that does not exist would fail in every rank."""
    try:
        Config(**system.settings)
    except TypeError as error:
        raise UsageError(f"--set/--frontier: {error}") from error


if __name__ == "__main__":
    try:
        typer.run(main)
    except (UsageError, RankFailed, OptiReduceError) as failure:
        print(failure, file=sys.stderr)
        raise SystemExit(1) from None
