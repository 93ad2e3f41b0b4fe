"""`optireduce lab restart`: ranks that are killed and started again in the same group."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab
from ...trials.restarts.outcome import Outcome
from ...trials.restarts.plan import RestartPlan
from ...trials.restarts.run import run_restarts
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from ..units import format_seconds
from .options import Hosts, Rate, become_able, chosen_rate
from .results import Out, failures_as_errors, write_result

_PORT = 29_600  # free: every host is a new namespace


def restart(
    minutes: Annotated[float, typer.Option(min=0.5, help="In all.")] = 10.0,
    every: Annotated[float, typer.Option(min=20.0, help="Seconds from one kill to the next.")] = 60.0,
    away: Annotated[float, typer.Option(min=0.0, help="Seconds before it is started again.")] = 5.0,
    hosts: Hosts = 4,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Kill one rank after the other (SIGKILL), rank 0 too, and start each again: it joins the running group.

    Exit code 1 if a rank does not become a member again within 30 of its own steps, if the bits of two
    members differ after a step, if a step of the others takes 0.5 s longer than usual, for a hang, and if the
    memory of the one rank that is never killed grows. Run it on an idle machine.
    """
    become_able()
    plan = RestartPlan(hosts, minutes * 60, every, away)
    with (
        failures_as_errors(),
        Lab(hosts=hosts, rate=chosen_rate(rate)) as lab,
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task("restart", total=round(plan.seconds), note="starting ranks")

        def advance(note: str, seconds: float) -> None:
            progress.update(bar, completed=round(seconds), note=note, refresh=True)

        outcome = run_restarts(lab, plan, _PORT, advance)
    print_table(table(outcome))
    write_result(out, {"returns": [asdict(each) for each in outcome.returns], "usual": outcome.usual_seconds})
    if problems := outcome.problems():
        raise CommandFailed("; ".join(problems))
    say(
        f"[green]{outcome.steps} steps with the same bits ({outcome.checks.compared} compared), every rank "
        f"came back, memory {outcome.growth / 2**20:+.1f} MiB[/]"
    )


def table(outcome: Outcome) -> Table:
    """One row a kill."""
    shown = Table(pad_edge=False)
    for column in ("killed", "process", "found its group after", "a member after", "own steps",
                   "steps without it", "usual step", "longest of the others"):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for each in outcome.returns:
        start = each.started_at or each.killed_at
        shown.add_row(
            f"rank {each.victim}",
            "-" if each.incarnation is None else str(each.incarnation),
            *(
                "-" if when is None else format_seconds(when - start)
                for when in (each.began_at, each.whole_at)
            ),
            str(each.own_steps),
            str(each.another_step),
            format_seconds(outcome.usual_seconds),
            format_seconds(each.longest),
        )
    return shown
