"""`optireduce lab soak`: a long run under faults that take turns."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table

from ...lab import Lab, LabError
from ...lab.loss import require_firewall
from ...trials.soak.outcome import Outcome
from ...trials.soak.plan import SoakPlan
from ...trials.soak.run import run_soak
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from .options import Rate, Size, become_able, chosen_size


def soak(
    minutes: Annotated[float, typer.Option(min=0.5, help="In all; two chapters or more.")] = 10.0,
    hosts: Annotated[int, typer.Option(min=3, max=8, help="Hosts on the switch, one rank each.")] = 4,
    rate: Rate = "200mbit",
    size: Size = "1M",
    training: Annotated[bool, typer.Option(help="Whether every second chapter trains.")] = True,
    python: Annotated[
        str, typer.Option(help="The ranks' interpreter, e.g. one with a sanitizer.")
    ] = sys.executable,
    any_memory: Annotated[bool, typer.Option("--any-memory", help="Growing memory is no failure.")] = False,
    drop: Annotated[
        float,
        typer.Option(min=0, max=0.2, help="Ranks drop this share of their packets: needs no firewall."),
    ] = 0.0,
) -> None:
    """All-reduces under loss, bursts, pauses and stops in turn; chapters end with a killed or cut-off rank.

    The others go on without it, then all form a new group. Every second chapter trains a model with DDP and
    attach() instead. Two things are checked: the results of every step are the same bits on all members, and
    every contribution counts exactly once (the sum of all results and of the flush at the end; steps of ranks
    out of the view are excepted and counted). Exit code 1 if one of them fails, and for a hang, an unexpected
    error, or memory that grows by more than 1 % once every fault has been seen.
    """
    become_able()
    plan = SoakPlan(
        hosts,
        minutes * 60,
        chosen_size(size, hosts),
        python=python,
        training=training,
        any_memory=any_memory,
        drop=drop,
    )
    try:
        if not drop:
            require_firewall("the soak's random loss (or --drop 0.02)")
        with Lab(hosts=hosts, rate=rate) as lab, progress_bar(redraws_itself=False) as progress:
            bar = progress.add_task("soak", total=round(plan.chapters * plan.chapter_seconds), note="forming")
            before, latest = 0.0, 0.0

            def advance(note: str, seconds: float) -> None:
                nonlocal before, latest
                if seconds < latest:  # another chapter
                    before += plan.chapter_seconds
                latest = seconds
                progress.update(bar, completed=round(before + seconds), note=note, refresh=True)

            outcome = run_soak(lab, plan, advance)
    except LabError as error:
        raise CommandFailed(str(error)) from error
    print_table(_table(outcome))
    if problems := outcome.problems():
        raise CommandFailed("\n".join(problems))
    memory = "memory was not looked at" if any_memory else "no growing memory"
    say(f"[green]equal results, nothing lost or counted twice, no hang, {memory}[/]")


def _table(outcome: Outcome) -> Table:
    table = Table("chapter", "kind", "ends with", "rank", "steps", "missing %", "compared", "off by",
                  "allowed", "views", "steps out of view", "after loss", "MiB early", "MiB late", "growth",
                  "silent s")  # fmt: skip
    for number, chapter in enumerate(outcome.chapters, start=1):
        for story in chapter.ranks:
            missing = 100 * story.missing / story.bytes if story.bytes else 0.0
            after = story.operations - (story.operations_at_loss or 0)
            table.add_row(
                str(number), chapter.kind, chapter.ending, str(story.rank), str(story.operations),
                f"{missing:.3f}", str(chapter.checks.compared),
                "-" if story.deviation is None else f"{story.deviation:.2f}", f"{story.allowed:.2f}",
                str(1 + story.view_changes), str(story.out_of_view), str(after),
                f"{story.resident_early / 2**20:.1f}", f"{story.resident_late / 2**20:.1f}",
                f"{story.growth:+.2%}", f"{story.longest_silence:.1f}",
            )  # fmt: skip
    return table
