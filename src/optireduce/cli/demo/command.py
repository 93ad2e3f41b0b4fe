"""`optireduce demo`: train with one backend after the other, watch, compare."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..backends import parse_backends
from ..console import print_table, progress_bar, say
from ..ranks import LocalRanks, Seat
from ..units import format_seconds
from .plan import RankDone, StepDone, TrainingPlan

if TYPE_CHECKING:
    from rich.progress import Progress

    from .summary import Outcome

# The first report comes after the import of torch, the reading of the text and the first step of every rank.
_SILENCE_SECONDS = 90.0
# Sums of floats depend on the order of the terms, and Adam, dividing by the gradient's size, amplifies that.
_ROUNDING = 1e-4


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps with each backend.")] = 100,
    nproc: Annotated[int, typer.Option(min=2, max=16, help="Number of local ranks.")] = 4,
    backends: Annotated[str, typer.Option(help="Backends, one after the other.")] = "gloo,optireduce",
) -> None:
    """Train a small transformer with DDP on local ranks, with one backend after the other, and compare.

    The model (0.84 million parameters) learns to predict the bytes of Python's own standard library. Seed
    and data are the same for every backend, so the parameters should be, too. About a minute on two
    cores.
    """
    names = parse_backends(backends)
    outcomes = []
    with progress_bar() as progress:
        for backend in names:
            outcomes.append(_train(backend, nproc, TrainingPlan(steps), progress))
    print_table(_render(outcomes, nproc))
    for outcome in outcomes:
        if outcome.replica_difference > 0:
            say(
                f"{outcome.backend}: some data missed its deadline; the ranks' parameters differ by at most "
                f"{outcome.replica_difference:.1e} of the largest one"
            )
    for outcome in outcomes[1:]:
        _say_agreement(outcomes[0], outcome)


def _train(backend: str, nproc: int, plan: TrainingPlan, progress: Progress) -> Outcome:
    from .summary import summarize

    task = progress.add_task(f"{backend:10}", total=plan.steps, note="starting ranks")
    steps: list[StepDone] = []
    finished: list[RankDone] = []
    start = time.perf_counter()
    with LocalRanks(_train_rank, nproc, (backend, plan)) as ranks:
        for message in ranks.messages(_SILENCE_SECONDS):
            if isinstance(message, RankDone):
                finished.append(message)
                continue
            steps.append(message)
            note = f"{format_seconds(message.seconds)}/step, loss {message.loss:.3f}"
            progress.update(task, advance=1, note=note)
    return summarize(backend, steps, finished, time.perf_counter() - start)


def _train_rank(seat: Seat, backend: str, plan: TrainingPlan) -> None:
    """Runs in the ranks: only they import torch."""
    from .worker import train_rank

    train_rank(seat, backend, plan)


def _render(outcomes: list[Outcome], nproc: int) -> Table:
    table = Table(title=f"{nproc} ranks, loopback", title_justify="left", pad_edge=False)
    table.add_column("backend")
    columns = ("steps", "step p50", "step p99", "waiting for gradients", "held-out loss", "total")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(
            outcome.backend,
            str(outcome.steps),
            format_seconds(outcome.p50),
            format_seconds(outcome.p99),
            f"{outcome.waiting_share:.0%}",
            f"{outcome.held_out_loss:.4f}",
            format_seconds(outcome.total_seconds),
        )
    return table


def _say_agreement(first: Outcome, other: Outcome) -> None:
    from .summary import relative_difference

    difference = relative_difference(first.parameters, other.parameters)
    verdict = "[green]agree within rounding[/]" if difference < _ROUNDING else "[red]differ[/]"
    say(
        f"final parameters of {first.backend} and {other.backend} {verdict} "
        f"(largest difference {difference:.1e} of the largest parameter); "
        f"{other.backend}'s steps take {other.p50 / first.p50:.2f} of {first.backend}'s time"
    )
