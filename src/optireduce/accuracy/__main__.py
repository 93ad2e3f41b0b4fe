"""The command line of the study."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..cli.console import progress_bar
from ..cli.errors import UsageError
from . import figures, table
from .plan import Plan, chosen_losses, chosen_strategies, chosen_tasks
from .strategies import PATTERNS, STRATEGIES
from .training import Case, Run, train


def run_all(plan: Plan) -> list[tuple[Case, Run]]:
    """One run after the other, with a bar that counts their steps."""
    cases = list(plan.cases())
    results: list[tuple[Case, Run]] = []
    with progress_bar() as progress:
        bar = progress.add_task("steps", total=sum(case.steps for case in cases), note="")
        for number, case in enumerate(cases, 1):
            progress.update(bar, note=f"{number}/{len(cases)} {_title(case)}")
            run = train(case, lambda steps: progress.advance(bar, steps))
            results.append((case, run))
    return results


def show_comparison(results: list[tuple[Case, Run]]) -> dict[str, Any]:
    """Print the table; the same as JSON values."""
    found = figures.rows(results)
    table.show_comparison(found)
    return {"figures": [asdict(row) for row in found]}


def main(
    task: Annotated[str, typer.Option(help="digits, bytes or all.")] = "all",
    strategies: Annotated[str, typer.Option(help=f"With commas: {','.join(STRATEGIES)}.")] = ",".join(
        STRATEGIES
    ),
    loss: Annotated[
        str, typer.Option(help="Shares of the packets that miss the deadline, with commas.")
    ] = "0.01,0.05,0.10",
    hopeless: Annotated[
        str,
        typer.Option(
            help="What no repair brings before the deadline: nothing, contributions or everything; `carry` "
            "repairs decisions in any case."
        ),
    ] = "everything",
    patterns: Annotated[str, typer.Option(help="Which packets, with commas.")] = ",".join(PATTERNS),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with other data and other losses.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 0,
    steps: Annotated[int | None, typer.Option(min=50, help="Of each run; each task knows its own.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; each task knows how many are fastest alone.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write every run there.")] = None,
) -> None:
    """Train with lost gradient data, by the protocol itself in virtual time, and compare with exact runs."""
    plan = Plan(
        tasks=chosen_tasks(task, threads),
        strategies=chosen_strategies(strategies),
        losses=chosen_losses(patterns, loss, hopeless),
        seeds=seeds,
        steps=steps,
        first_seed=first_seed,
    )
    results = run_all(plan)
    found = show_comparison(results)
    if output is not None:
        output.write_text(json.dumps(found | {"runs": figures.as_json(results)}) + "\n")


def _title(case: Case) -> str:
    lost = "" if case.loss is None else f" {case.loss.pattern} {case.loss.share:.0%}"
    return f"{case.task.name}{lost} {case.strategy.name} seed {case.seed}"


if __name__ == "__main__":
    try:
        typer.run(main)
    except UsageError as failure:
        print(failure, file=sys.stderr)
        raise SystemExit(1) from None
