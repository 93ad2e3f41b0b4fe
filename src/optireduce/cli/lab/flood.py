"""`optireduce lab flood`: what a stranger's flood of packets costs."""

from __future__ import annotations

from typing import Annotated

import typer

from ...lab import Lab, LabError
from ...trials.ranks import RankFailed
from ...trials.soak.flood import FloodOutcome, run_flood
from ...trials.soak.plan import SoakPlan
from ..console import progress_bar, say
from ..errors import CommandFailed
from .options import Hosts, Rate, Size, become_able, chosen_rate, chosen_size


def flood(
    packets: Annotated[int, typer.Option(min=1, help="A second, to the ports of rank 0.")] = 100_000,
    seconds: Annotated[float, typer.Option(min=25, help="In all; flood and quiet take turns.")] = 60.0,
    hosts: Hosts = 4,
    rate: Rate = "1gbit",
    size: Size = "4M",
    most: Annotated[float, typer.Option(min=1, help="Exit code 1 if the ratio of times is above.")] = 1.2,
) -> None:
    """All-reduces with and without a flood of small packets from a stranger, in turn: the ratio of times.

    Results that differ between ranks, wrong sums and a rank that ends early are failures too. The switch and
    all hosts are this machine: its kernel carries every packet, on the cores on which the ranks compute. On
    unshaped links the ratio tells more about these cores than about the flood.
    """
    become_able()
    plan = SoakPlan(hosts, 2 * seconds, chosen_size(size, hosts))
    try:
        with (
            Lab(hosts=hosts, rate=chosen_rate(rate), offload=False) as lab,
            progress_bar(redraws_itself=False) as progress,
        ):
            bar = progress.add_task("flood", total=round(plan.chapter_seconds), note="forming")

            def advance(note: str, passed: float) -> None:
                progress.update(bar, completed=round(passed), note=note, refresh=True)

            outcome = run_flood(lab, plan, packets, advance)
    except (LabError, RankFailed) as error:
        raise CommandFailed(str(error)) from error
    _tell(outcome, most)


def _tell(outcome: FloodOutcome, most: float) -> None:
    say(f"{outcome.packets_per_second:,.0f} packets a second came from the stranger, "
        f"{outcome.reached} of them all reached an engine")  # fmt: skip
    say(f"median all-reduce: {outcome.ratio:.3f} times as long as without ({len(outcome.flooded)} and "
        f"{len(outcome.quiet)} operations)")  # fmt: skip
    say(f"{outcome.checks.compared} results compared between ranks")
    problems = [*outcome.ended, *outcome.checks.problems(), *outcome.off]
    if outcome.ratio > most:
        problems.append(f"the flood made all-reduces {outcome.ratio:.2f} times as long: more than {most:.2f}")
    if problems:
        raise CommandFailed("; ".join(problems))
