"""`optireduce lab pauses`: a rank whose process sleeps or is stopped stays a member, and nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab
from ...trials.ranks import Ranks
from ...trials.replicas.outcome import Run
from ...trials.replicas.plan import GLOO, OURS, ReplicaPlan
from ...trials.replicas.run import Event, run_replicas
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from ..units import format_seconds
from .options import Hosts, Rate, become_able
from .results import Out, failures_as_errors, write_result

_STOPPED = "stopped"
_STEP_SECONDS = 0.05
_NAPS_SECONDS = (1.0, 3.0)
_STOP_SECONDS, _STOPS = 0.3, 3
_MOST_RATIO = 1.02


def pauses(
    hosts: Hosts = 4,
    steps: Annotated[int, typer.Option(min=40, help="Of 50 ms.")] = 120,
    pairs: Annotated[int, typer.Option(min=1, help="Runs of Gloo and ours, in turn.")] = 3,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Let rank 0's process sleep for 1 s and 3 s; in another run stop the last rank three times for 0.3 s.

    While rank 0 sleeps its engine runs: the others must keep it as a member, lose nothing, and take at most
    1.02 times as long as with Gloo (median of the pairs). A rank that was stopped (SIGSTOP) must be a member
    again each time, with the same bits. Exit code 1 if one of these fails.
    """
    become_able()
    naps = {str((1 + index) * steps // 3): seconds for index, seconds in enumerate(_NAPS_SECONDS)}
    runs: dict[str, list[Run]] = {GLOO: [], OURS: [], _STOPPED: []}
    total = (2 * pairs + 1) * steps
    with (
        failures_as_errors(),
        Lab(hosts=hosts, rate=rate) as lab,
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task("pauses", total=total, note="starting ranks")

        def advance(system: str) -> Callable[[int], None]:
            return lambda step: progress.update(bar, advance=1, note=system, refresh=True)

        for _ in range(pairs):
            for system in (GLOO, OURS):
                plan = ReplicaPlan(steps, system, step_seconds=_STEP_SECONDS, naps=naps)
                runs[system].append(run_replicas(lab, plan, advance=advance(system)))
        plan = ReplicaPlan(steps, step_seconds=_STEP_SECONDS)
        stops = _stops(hosts - 1, steps)
        runs[_STOPPED].append(run_replicas(lab, plan, events=stops, advance=advance(_STOPPED)))
    print_table(table(runs))
    say(f"wall time over Gloo's: {ratio(runs):.3f}, allowed {_MOST_RATIO}")
    write_result(out, {name: [asdict(run) for run in found] for name, found in runs.items()})
    if problems := problems_of(runs, hosts):
        raise CommandFailed("; ".join(problems))
    say("[green]all ranks stayed or became members again, and nothing was lost[/]")


def _stops(victim: int, steps: int) -> list[Event]:
    """At equal distances, each ended by SIGCONT."""

    def send(number: signal.Signals) -> Callable[[Ranks], None]:
        return lambda ranks: ranks.processes[victim].send_signal(number)

    events = []
    for index in range(_STOPS):
        step = (1 + index) * steps // (_STOPS + 1)
        events.append(Event(f"stop {index}", step, send(signal.SIGSTOP)))
        events.append(Event(f"continue {index}", step, send(signal.SIGCONT), _STOP_SECONDS))
    return events


def ratio(runs: dict[str, list[Run]]) -> float:
    """Our wall time over Gloo's, median of the pairs."""
    pairs = zip(runs[OURS], runs[GLOO], strict=True)
    return median(ours.wall_seconds() / gloo.wall_seconds() for ours, gloo in pairs)


def table(runs: dict[str, list[Run]]) -> Table:
    """One row a run."""
    shown = Table(pad_edge=False)
    for column in ("run", "wall", "bits", "counter - steps", "views", "members", "missing"):
        shown.add_column(column, no_wrap=True)
    for name, found in runs.items():
        for run in found:
            shown.add_row(
                name,
                format_seconds(run.wall_seconds()),
                "[red]different[/]" if run.unequal() else "equal",
                f"{run.deviation():g}",
                str(len(run.views()) or "-"),
                ", ".join(map(str, run.last_members())) or "-",
                f"{run.missing_mean():.2%}",
            )
    return shown


def problems_of(runs: dict[str, list[Run]], hosts: int) -> list[str]:
    """What must not be; empty when all is well."""
    found = []
    for name in (OURS, _STOPPED):
        for run in runs[name]:
            if run.unequal():
                found.append(f"{name}: replicas differ after step {run.unequal()[0]}")
            if not run.deviation() <= run.allowed_deviation():
                found.append(f"{name}: a counter is off by {run.deviation():g} steps")
            if len(run.finished()) < hosts or run.last_members() != list(range(hosts)):
                found.append(f"{name}: the members at the end are {run.last_members()}")
            found += [
                f"{name}: rank {s.rank}: {s.failed['error']}" for s in run.ranks if s.failed is not None
            ]
    if any(len(run.views()) > 1 for run in runs[OURS]):
        found.append(f"{OURS}: a sleeping rank was removed from the view")
    if ratio(runs) > _MOST_RATIO:
        found.append(f"the wall time is {ratio(runs):.3f} of Gloo's: more than {_MOST_RATIO}")
    return found
