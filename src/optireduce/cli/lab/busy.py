"""`optireduce lab busy`: is a rank taken for dead because its machine is busy?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab
from ...trials.replicas.outcome import Run
from ...trials.replicas.plan import ReplicaPlan
from ...trials.replicas.run import run_replicas
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from ..units import format_seconds
from .options import Hosts, Rate, become_able
from .results import Out, failures_as_errors, write_result

_STEP_SECONDS = 0.05
_MOST_REMOVALS = 1
_HOG = "import ast, inspect\nwhile True:\n    compile(ast.parse(inspect.getsource(inspect)), 'hog', 'exec')\n"


def busy(
    hosts: Hosts = 4,
    steps: Annotated[int, typer.Option(min=20, help="5,000 take some ten minutes on two cores.")] = 5_000,
    hogs: Annotated[int, typer.Option(min=0, help="Compilers that run beside the ranks.")] = 2,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Train beside compilers that take the cores away: every removal from the view is a false suspicion.

    Exit code 1 if there is more than one, or if replicas differ.
    """
    become_able()
    plan = ReplicaPlan(steps, transformer=True, step_seconds=_STEP_SECONDS)
    with (
        failures_as_errors(),
        Lab(hosts=hosts, rate=rate) as lab,
        _compilers(hogs),
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task("busy", total=steps, note="starting ranks")

        def advance(step: int) -> None:
            progress.update(bar, completed=step + 1, note="", refresh=True)

        run = run_replicas(lab, plan, advance=advance)
    print_table(table(run))
    write_result(out, {"run": asdict(run)})
    if problems := problems_of(run):
        raise CommandFailed("; ".join(problems))
    say("[green]at most one false suspicion[/]")


@contextmanager
def _compilers(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def table(run: Run) -> Table:
    """One row."""
    shown = Table(pad_edge=False)
    for column in ("steps", "wall", "removals", "views", "bits", "counter - steps", "missing", "members"):
        shown.add_column(column, no_wrap=True)
    shown.add_row(
        str(run.planned_steps),
        format_seconds(run.wall_seconds()) if run.finished() else "-",
        str(run.removals()),
        str(len(run.views())),
        "[red]different[/]" if run.unequal() else "equal",
        f"{run.deviation():g}",
        f"{run.missing_mean():.2%}",
        ", ".join(map(str, run.last_members())),
    )
    return shown


def problems_of(run: Run) -> list[str]:
    """What must not be; empty when all is well."""
    found = [f"replicas differ after step {step}" for step in run.unequal()[:1]]
    if run.removals() > _MOST_REMOVALS:
        found.append(f"{run.removals()} live ranks were removed from the view: more than {_MOST_REMOVALS}")
    if not run.deviation() <= run.allowed_deviation():
        found.append(f"a counter is off by {run.deviation():g} steps")
    return found
