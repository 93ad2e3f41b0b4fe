"""`optireduce lab returns`: a rank that was away or restarted comes back while the others train."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab
from ...trials.returns.plan import ReturnPlan
from ...trials.returns.run import HOW, How, Returned, run_return
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed, UsageError
from ..units import format_seconds
from .options import Hosts, Rate, become_able
from .results import Out, failures_as_errors, write_result

_PORT = 29_500  # in a host of the lab, which has no other programs
_MOST_MORE_SECONDS = 0.5
_MOST_STEPS = {"stopped": 40, "killed": 30}
_AWAY_SECONDS = {"stopped": 20.0, "killed": 5.0}
_AT_STEP = 40


def returns(
    how: Annotated[
        str, typer.Argument(help="stopped (SIGSTOP) or killed (SIGKILL, and started again).")
    ] = "stopped",
    hosts: Hosts = 4,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="The rank is away; 20 stopped, 5 killed.")
    ] = None,
    victim: Annotated[int | None, typer.Option(help="The rank; the last one by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with one without a fault beside it.")] = 3,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Stop or kill a rank of a training with steps of 50 ms, and let it come back.

    The others' longest step may be their usual one and 0.5 s. The rank must be a member again within 40 of
    its steps (stopped), or 30 (killed and started again). Parameters, optimizer state and learning rate must
    be equal at the end. Exit code 1 if one of these fails. The held-out loss is shown beside that of a run
    without a fault. Run it on an idle machine.
    """
    kind: How = HOW.get(how, "none")
    if kind == "none":
        raise UsageError(f"{how!r} is not one of {', '.join(_MOST_STEPS)}")
    become_able()
    away = _AWAY_SECONDS[how] if seconds is None else seconds
    gone = hosts - 1 if victim is None else victim
    if not 0 <= gone < hosts:
        raise UsageError(f"--victim {gone} is no rank: they are 0 to {hosts - 1}")
    steps = _AT_STEP + round(2.5 * (away + 5.0) / 0.06)
    runs: dict[str, list[Returned]] = {how: [], "none": []}
    with (
        failures_as_errors(),
        Lab(hosts=hosts, rate=rate) as lab,
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task(how, total=2 * seeds * steps, note="starting ranks")
        planned = [(seed, each) for seed in range(1, seeds + 1) for each in (kind, HOW["none"])]
        for index, (seed, each) in enumerate(planned):
            plan = ReturnPlan(steps, f"{lab.addresses[0]}:{_PORT}", seed=seed)

            def advance(step: int, index: int = index, each: str = each) -> None:
                progress.update(bar, completed=index * steps + step, note=each, refresh=True)

            runs[each].append(
                run_return(lab, plan, each, victim=gone, at_step=_AT_STEP, seconds=away, advance=advance)
            )
    print_table(table(runs[how], runs["none"]))
    write_result(out, {name: [asdict(run) for run in found] for name, found in runs.items()})
    if problems := [problem for run in runs[how] for problem in problems_of(run, how)]:
        raise CommandFailed("; ".join(problems))
    say("[green]the rank came back each time, and nobody waited for it[/]")


def table(runs: list[Returned], calm: list[Returned]) -> Table:
    """One row a run."""
    shown = Table(pad_edge=False)
    for column in ("usual step", "longest of the others", "its steps until member", "snapshots", "bits",
                   "held-out loss", "without a fault"):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for run, other in zip(runs, calm, strict=True):
        until = run.steps_until_member()
        final = run.finals.get(run.victim, {})
        shown.add_row(
            format_seconds(run.usual_seconds()),
            format_seconds(run.longest_seconds()),
            "never" if until is None else str(until),
            str(final.get("snapshots", "-")),
            "equal" if run.equal() else "[red]different[/]",
            f"{run.loss():.4f}",
            f"{other.loss():.4f}",
        )
    mean = fmean(run.loss() - other.loss() for run, other in zip(runs, calm, strict=True))
    shown.caption = f"held-out loss, mean difference: {mean:+.4f}"
    return shown


def problems_of(run: Returned, how: str) -> list[str]:
    """What must not be; empty when all is well."""
    found = []
    usual, longest, until = run.usual_seconds(), run.longest_seconds(), run.steps_until_member()
    if not longest <= usual + _MOST_MORE_SECONDS:
        found.append(f"a step of the others took {longest:.2f} s: usual are {usual:.2f} s")
    if until is None or until > _MOST_STEPS[how]:
        found.append(
            f"the rank needed {until} of its steps to become a member: {_MOST_STEPS[how]} are allowed"
        )
    if not run.equal():
        found.append("the ranks ended with different bits")
    return found
