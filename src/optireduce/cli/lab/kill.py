"""`optireduce lab kill`: how long survivors wait when a rank is killed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab
from ...trials.replicas.outcome import Run
from ...trials.replicas.plan import ReplicaPlan
from ...trials.replicas.run import Event, run_replicas
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from ..units import format_seconds
from .options import Hosts, Rate, become_able
from .results import Out, failures_as_errors, write_result

_KILL = "kill"
_STEP_SECONDS = 0.05
_MOST_MORE_SECONDS = 0.5


def kill(
    hosts: Hosts = 4,
    steps: Annotated[int, typer.Option(min=40, help="Of 50 ms and the all-reduce.")] = 120,
    repeats: Annotated[int, typer.Option(min=1, help="Runs, each with another group.")] = 3,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Kill the last rank (SIGKILL) after a third of the steps: the survivors' longest step.

    It may be the usual step and 0.5 s. Every value of the gradient must go on being updated, and the
    survivors' bits must be equal. Exit code 1 if one of these fails. Run it on an idle machine.
    """
    become_able()
    victim = hosts - 1
    kills = [Event(_KILL, steps // 3, lambda ranks: ranks.processes[victim].kill())]
    plan = ReplicaPlan(steps, step_seconds=_STEP_SECONDS)
    runs = []
    with (
        failures_as_errors(),
        Lab(hosts=hosts, rate=rate) as lab,
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task("kill", total=repeats * steps, note="starting ranks")

        def advance(step: int) -> None:
            progress.update(bar, advance=1, note=f"step {step}", refresh=True)

        for _ in range(repeats):
            runs.append(run_replicas(lab, plan, events=kills, may_die={victim}, advance=advance))
    print_table(table(runs, victim))
    write_result(out, {"runs": [asdict(run) for run in runs]})
    problems = [problem for run in runs for problem in problems_of(run, victim)]
    if problems:
        raise CommandFailed("; ".join(problems))
    say("[green]no step of the survivors was longer than the usual one and 0.5 s[/]")


def table(runs: list[Run], victim: int) -> Table:
    """One row a run."""
    shown = Table(pad_edge=False)
    for column in ("usual step", "longest of the survivors", "allowed", "bits", "counter - steps", "allowed",
                   "members"):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for run in runs:
        usual, longest = _times(run, victim)
        shown.add_row(
            format_seconds(usual),
            format_seconds(longest),
            format_seconds(usual + _MOST_MORE_SECONDS),
            "[red]different[/]" if run.unequal() else "equal",
            f"{run.deviation():g}",
            f"{run.allowed_deviation():.2g}",
            ", ".join(map(str, run.last_members())),
        )
    return shown


def problems_of(run: Run, victim: int) -> list[str]:
    """What must not be; empty when all is well."""
    usual, longest = _times(run, victim)
    found = []
    if not longest <= usual + _MOST_MORE_SECONDS:
        found.append(f"a step took {longest:.2f} s: usual are {usual:.2f} s")
    if run.unequal():
        found.append(f"replicas differ after step {run.unequal()[0]}")
    if not run.deviation() <= run.allowed_deviation():
        found.append(f"a counter is off by {run.deviation():g} steps: not every value is updated")
    if len(run.finished()) != len(run.ranks) - 1:
        found.append(f"{len(run.finished())} of {len(run.ranks) - 1} survivors trained to the end")
    return found


def _times(run: Run, victim: int) -> tuple[float, float]:
    """The usual step before, and the longest of the survivors from then on."""
    killed = run.moments[_KILL]
    return run.usual_seconds(killed), run.longest_seconds(killed, but=[victim])
