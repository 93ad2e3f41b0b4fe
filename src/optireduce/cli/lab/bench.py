"""`optireduce lab bench`: all-reduces of several systems side by side on a noisy network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from ...errors import OptiReduceError
from ...lab import SWITCH_QUEUE, Environment, Lab, disturb
from ...lab.shaping import bits_per_second
from ...trials.allreduce.comparison import compare, figures, limit_seconds
from ...trials.allreduce.faults import aftermath, provoke
from ...trials.allreduce.plan import OURS, SYSTEMS, Plan, System
from ...trials.calibrated import Scope, recall
from ...trials.ranks import RankFailed
from ..console import progress_bar, say
from ..errors import CommandFailed, UsageError
from ..units import format_size
from . import bench_table
from .options import (
    EnvironmentName,
    Hosts,
    Rate,
    Seed,
    Size,
    become_able,
    chosen_environment,
    chosen_rate,
    chosen_size,
    say_environment,
)
from .settings import check_settings, chosen_systems, default_systems, frontier_systems, parse_settings

_HEADER_BYTES = 64
_PAYLOAD_BYTES = 1_408  # of a packet that fits an MTU of 1,500
_FRAME_BYTES = 14 + 20 + 8 + _HEADER_BYTES + _PAYLOAD_BYTES


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    plan: Plan
    environment: Environment
    rate: str | None
    offload: bool
    seed: int
    egress: str | None = None
    switch_queue: str = SWITCH_QUEUE

    def title(self) -> str:
        """Above the results."""
        packets = "" if self.offload else ", single packets"
        links = (self.rate or "unshaped") + (f", sending {self.egress}" if self.egress else "")
        if self.switch_queue != SWITCH_QUEUE:
            links += f" with {self.switch_queue} of queue"
        size = format_size(self.plan.size)
        ranks = f" with {self.plan.per_host} ranks each" if self.plan.per_host > 1 else ""
        return f"{self.environment.name}: {self.plan.hosts} hosts{ranks}, {links}, {size}{packets}"


class Advance(Protocol):
    """Moves the progress bar."""

    def __call__(self, note: str, operations: int) -> None: ...


def bench(
    environment: EnvironmentName = "quiet",
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Of {','.join(SYSTEMS)}; `papers` is their best-effort transport, `multicast` ours with it."
        ),
    ] = None,
    hosts: Hosts = 4,
    per_host: Annotated[int, typer.Option(min=1, max=64, help="Ranks on each host.")] = 1,
    rate: Rate = "200mbit",
    egress: Annotated[
        str | None, typer.Option(help="Of what hosts send, where it is slower than --rate.")
    ] = None,
    switch_queue: Annotated[
        str, typer.Option(help="Bytes that may wait at each switch port, e.g. 48k.")
    ] = SWITCH_QUEUE,
    size: Size = "4M",
    iterations: Annotated[int, typer.Option(min=2, help="Timed operations of each system.")] = 100,
    block: Annotated[int, typer.Option(min=1, help="Operations of one system in a row.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Operations of ours before timing.")] = 25,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A field of Config, field=value; repeatable.")
    ] = None,
    frontier: Annotated[
        str | None, typer.Option(help="Gloo, and ours once for each value: field=value,value,...")
    ] = None,
    offload: Annotated[
        bool, typer.Option(help="Let the kernel carry 64 KB as one packet; loss is then as coarse.")
    ] = True,
    seed: Seed = 1,
    output: Annotated[Path | None, typer.Option("--json", help="Write every time and report there.")] = None,
) -> None:
    """Compare all-reduces in the lab: every rank is in a group of each system, and blocks of their operations
    take turns, so that all meet the same network in the same minutes.

    `stop` and `crash` run optireduce alone, with a rank that is stopped or killed after a third of the steps.
    """
    chosen = chosen_environment(environment)
    if chosen.is_fault and frontier:
        raise UsageError(f"--frontier compares systems; {environment} runs one: leave one out")
    if chosen.is_fault and per_host != 1:
        raise UsageError(
            f"--per-host {per_host} does not go with {environment}: its hosts have one rank each"
        )
    own = parse_settings(settings or [])
    competitors = (
        frontier_systems(frontier, own) if frontier else chosen_systems(systems or default_systems(), own)
    )
    if chosen.is_fault:
        competitors = (System(OURS, own),)
    check_settings(competitors)
    become_able()
    ranks = hosts * per_host
    plan = Plan(competitors, hosts, chosen_size(size, ranks), iterations, block, warmup, per_host=per_host)
    chosen, line = recall(chosen, Scope(hosts, chosen_rate(rate), plan.size))
    say_environment(chosen, line)
    request = Request(plan, chosen, chosen_rate(rate), offload, seed, egress, switch_queue)
    try:
        with Lab(
            hosts=hosts, rate=request.rate, offload=offload, egress_rate=egress, switch_queue=switch_queue
        ) as lab:
            result = (_run_fault if chosen.is_fault else _run_comparison)(lab, request)
    except (OptiReduceError, RankFailed) as error:
        raise CommandFailed(str(error)) from error
    if output is not None:
        output.write_text(json.dumps({"request": asdict(request)} | result) + "\n")


def _run_comparison(lab: Lab, request: Request) -> dict[str, Any]:
    """All systems side by side; prints the table and returns everything as JSON values."""
    plan = request.plan
    with _bar(request) as advance:
        found = compare(lab, plan, lambda: disturb(lab, request.environment, request.seed), advance)
    rows = [figures(name, measured) for name, measured in found.systems.items()]
    limit = drops = None
    if request.rate is not None:
        limit = limit_seconds(plan, bits_per_second(request.rate), _FRAME_BYTES, _PAYLOAD_BYTES)
        drops = sum(lab.link(host).down.dropped_packets for host in range(plan.hosts))
    bench_table.show_comparison(request.title(), rows, limit, drops)
    bench_table.show_cpu(found.cpu)
    return {
        "limit_seconds": limit,
        "switch_drops": drops,
        "figures": [asdict(row) | {"tail": row.tail} for row in rows],
        "cpu": None if found.cpu is None else asdict(found.cpu),
        "operations": {name: measured.operations for name, measured in found.systems.items()},
        "counters": {name: measured.counters for name, measured in found.systems.items()},
    }


def _run_fault(lab: Lab, request: Request) -> dict[str, Any]:
    """Ours alone, with one rank stopped or killed; prints what the others noticed."""
    with _bar(request) as advance:
        incident = provoke(lab, request.plan, kill=request.environment.crashes, advance=advance)
    found = aftermath(incident, request.plan.warmup)
    say(request.title())
    bench_table.show_incident(request.environment.summary, incident, found)
    return {"aftermath": asdict(found), "incident": asdict(incident)}


@contextmanager
def _bar(request: Request) -> Iterator[Advance]:
    """Drawn only when told to: a thread that redraws would delay the gate that all ranks wait at."""
    plan = request.plan
    with progress_bar(redraws_itself=False) as progress:
        total = len(plan.systems) * plan.iterations
        task = progress.add_task(request.environment.name, total=total, note="starting")

        def advance(note: str, operations: int) -> None:
            progress.update(task, advance=operations, note=note, refresh=True)

        yield advance
