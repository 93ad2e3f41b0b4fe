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
from .drift import judge
from .plan import DRIFT_LOSS, DRIFT_STEPS, Plan, chosen_losses, chosen_strategies, chosen_tasks
from .strategies import OURS, PATTERNS, STRATEGIES
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


def show_drift(results: list[tuple[Case, Run]]) -> dict[str, Any]:
    """Print what became of the drift; the same as JSON values."""
    verdicts = [
        (figures.cell_of(case), case.seed, judge(run.drift, case.task.drift_limit)) for case, run in results
    ]
    table.show_drift(verdicts)
    return {
        "drift": [
            figures.place_as_json(case) | asdict(verdict) | {"bounded": verdict.bounded}
            for (case, _), (_, _, verdict) in zip(results, verdicts, strict=True)
        ]
    }


def main(
    task: Annotated[str, typer.Option(help="digits, bytes or all.")] = "all",
    strategies: Annotated[
        str | None,
        typer.Option(help=f"With commas: {','.join(STRATEGIES)}; all unless said, with --drift only ours."),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Shares of the packets that miss the deadline, with commas.")
    ] = None,
    hopeless: Annotated[
        str,
        typer.Option(help="What no repair brings before the deadline: nothing, contributions or everything."),
    ] = "everything",
    patterns: Annotated[str, typer.Option(help="Which packets, with commas.")] = ",".join(PATTERNS),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with other data and other losses.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 0,
    steps: Annotated[int | None, typer.Option(min=50, help="Of each run; each task knows its own.")] = None,
    drift: Annotated[
        bool, typer.Option(help=f"Only whether replicas stay together, over {DRIFT_STEPS:,} steps.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; each task knows how many are fastest alone.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write every run there.")] = None,
) -> None:
    """Train with lost gradient data, by the protocol itself in virtual time, and compare with exact runs."""
    plan = Plan(
        tasks=chosen_tasks(task, threads),
        strategies=chosen_strategies(strategies or (OURS.name if drift else ",".join(STRATEGIES))),
        losses=chosen_losses(patterns, loss or (DRIFT_LOSS if drift else "0.01,0.05,0.10"), hopeless),
        seeds=seeds,
        steps=steps or (DRIFT_STEPS if drift else None),
        drift_only=drift,
        first_seed=first_seed,
    )
    results = run_all(plan)
    found = (show_drift if drift else show_comparison)(results)
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
