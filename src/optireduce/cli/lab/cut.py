"""`optireduce lab cut`: which side trains while the network is cut in two."""

from __future__ import annotations

from collections.abc import Sequence
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
from .options import Rate, become_able
from .results import Out, failures_as_errors, write_result

_CUT, _HEALED = "cut", "healed"
_HOSTS, _MINORITY = 5, (3, 4)
_CUT_AT = 30  # step
_STEP_SECONDS = 0.1
_SETTLING_SECONDS = 2.0  # until then steps that were under way may still end


def cut(
    seconds: Annotated[float, typer.Option(min=5, help="Of the cut.")] = 20.0,
    rate: Rate = "200mbit",
    out: Out = None,
) -> None:
    """Train with 5 ranks and let nothing pass between ranks 0 to 2 and ranks 3 to 4: at most one side trains.

    Counted are steps that begin 2 s after the cut and end before it heals. Exit code 1 if both sides make
    any, or if members differ at the end.
    """
    become_able()
    steps = _CUT_AT + round(1.5 * seconds / _STEP_SECONDS)
    plan = ReplicaPlan(steps, step_seconds=_STEP_SECONDS)
    with (
        failures_as_errors(),
        Lab(hosts=_HOSTS, rate=rate) as lab,
        progress_bar(redraws_itself=False) as progress,
    ):
        bar = progress.add_task("cut", total=steps, note="starting ranks")

        def advance(step: int) -> None:
            progress.update(bar, advance=1, note=f"step {step}", refresh=True)

        events = [
            Event(_CUT, _CUT_AT, lambda ranks: lab.split(_MINORITY)),
            Event(_HEALED, _CUT_AT, lambda ranks: lab.heal(_MINORITY), seconds),
        ]
        run = run_replicas(lab, plan, events=events, advance=advance)
    print_table(table(run))
    write_result(out, {"run": asdict(run)})
    if problems := problems_of(run):
        raise CommandFailed("; ".join(problems))
    say("[green]at most one side trained[/]")


def sides(run: Run) -> dict[tuple[int, ...], int]:
    """The steps that each side made while the network was cut, by its ranks."""
    begin, end = run.moments[_CUT] + _SETTLING_SECONDS, run.moments[_HEALED]
    majority = tuple(rank for rank in range(len(run.ranks)) if rank not in _MINORITY)
    return {side: max(_made(run, side, begin, end)) for side in (majority, _MINORITY)}


def _made(run: Run, side: Sequence[int], begin: float, end: float) -> list[int]:
    return [run.steps_between(rank, begin, end) for rank in side]


def table(run: Run) -> Table:
    """One row a side."""
    shown = Table(pad_edge=False)
    for column in ("ranks", "steps while cut", "steps in all", "ended with"):
        shown.add_column(column)
    for side, made in sides(run).items():
        stories = [run.ranks[rank] for rank in side]
        ends = {_ended(story.failed) for story in stories}
        steps = max(len(story.steps) for story in stories)
        shown.add_row(", ".join(map(str, side)), str(made), str(steps), "; ".join(sorted(ends)))
    return shown


def _ended(failed: dict[str, object] | None) -> str:
    return "all steps" if failed is None else str(failed["error"])


def problems_of(run: Run) -> list[str]:
    """What must not be; empty when all is well."""
    found = []
    if all(sides(run).values()):
        made = " and ".join(f"{steps} on ranks {side}" for side, steps in sides(run).items())
        found.append(f"both sides trained: {made} steps")
    if run.unequal():
        found.append(f"replicas differ after step {run.unequal()[0]}")
    return found
