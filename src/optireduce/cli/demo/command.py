"""`optireduce demo`: the same training with Gloo and optireduce on the same bad network."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ...errors import OptiReduceError
from ...lab import Environment, Lab, LabError, calm, disturb
from ...trials.calibrated import Scope, recall
from ...trials.places import Loopback, Place
from ...trials.training.outcome import Outcome, Step
from ...trials.training.plan import TrainingPlan
from ...trials.training.run import run_training
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed
from ..lab.options import become_able, chosen_environment
from ..units import format_seconds
from .look import write_report

_RATE = "200mbit"
_CALIBRATED_BYTES = 4 << 20
_SYSTEMS = ("gloo", "optireduce")
_SEED = 1
_STOPPED_SECONDS = 3.0


def demo(
    environment: Annotated[str, typer.Option(help="One of `optireduce lab environments`.")] = "tail3",
    hosts: Annotated[int, typer.Option(min=2, max=16, help="Hosts, one rank each.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Training steps with each system.")] = 120,
    out: Annotated[Path, typer.Option(help="Folder for the page, the plots and the logs.")] = Path(
        "optireduce-demo"
    ),
) -> None:
    """Train a small transformer with DDP on a bad network, with Gloo and then with optireduce, and compare.

    The hosts are network namespaces with links of 200 Mbit/s; where there are none, the ranks meet on
    loopback. The model (0.84 million parameters) learns to predict the bytes of Python's own standard
    library; seed and data are the same for both. Some two minutes on two cores.
    """
    chosen = chosen_environment(environment, trains=True)
    shutil.rmtree(out / "runs", ignore_errors=True)
    outcomes = []
    try:
        with _place(hosts, chosen) as (place, begin, title), progress_bar() as progress:
            for system in _SYSTEMS:
                bar = progress.add_task(f"{system:10}", total=steps, note="starting ranks")
                plan = TrainingPlan(
                    system, steps, seed=_SEED, evaluate_every=max(1, steps // 20), late=chosen.late
                )
                folder, advance = out / "runs" / system, _teller(progress, bar)
                at_step = _fault(place, chosen, steps // 2)
                outcomes.append(
                    run_training(place, plan, folder, begin=begin, advance=advance, at_step=at_step)
                )
                if isinstance(place, Lab):
                    calm(place)
    except OptiReduceError as error:
        raise CommandFailed(str(error)) from error
    _show(outcomes, title)
    page = write_report(out, title, {outcome.system: out / "runs" / outcome.system for outcome in outcomes})
    if page is not None:
        say(f"look at it: [bold]{page}[/]")


def _teller(progress: Progress, bar: TaskID) -> Callable[[Step], None]:
    def tell(step: Step) -> None:
        note = f"{format_seconds(step.seconds)}/step, loss {step.loss:.3f}"
        progress.update(bar, advance=1, note=note)

    return tell


@contextmanager
def _place(hosts: int, environment: Environment) -> Iterator[tuple[Place, Callable[[], None], str]]:
    """The hosts, what to do when all ranks are ready, and what to call it."""
    opened = ExitStack()
    try:
        become_able()
        lab = opened.enter_context(Lab(hosts=hosts, rate=_RATE))
    except (CommandFailed, LabError) as error:
        say(f"[yellow]no lab here[/]: {error}")
        say("the ranks meet on loopback instead: nothing is slow or lost there, so expect no difference")
        yield Loopback(hosts), lambda: None, f"{hosts} ranks, loopback"
        return
    with opened:
        environment, line = recall(environment, Scope(hosts, _RATE, _CALIBRATED_BYTES))
        say(f"[bold]{environment.name}[/], {hosts} hosts, links of {_RATE}: {line}")
        yield lab, lambda: disturb(lab, environment, _SEED), f"{environment.name}, {hosts} hosts, {_RATE}"


def _fault(place: Place, environment: Environment, step: int) -> Callable[[int], frozenset[int]]:
    """What `stop` and `crash` do to the last host when rank 0 has made so many steps: the ranks that may then
    end early. A rank that was stopped for long is left behind."""
    victim = len(place.addresses) - 1

    def at_step(done: int) -> frozenset[int]:
        if not isinstance(place, Lab) or done != step:
            return frozenset()
        if environment.stops:
            place.stop_host(victim)
            threading.Timer(_STOPPED_SECONDS, place.resume_host, (victim,)).start()
        if environment.crashes:
            place.kill_host(victim)
        return frozenset({victim} if environment.is_fault else ())

    return at_step


def _show(outcomes: list[Outcome], title: str) -> None:
    print_table(_render(outcomes, title))
    for outcome in outcomes:
        if outcome.failure is not None:
            why = escape(outcome.failure.splitlines()[-1])
            say(f"[red]{outcome.system} failed[/] after {len(outcome.steps)} steps: {why}")
        elif outcome.replica_difference:
            say(
                f"[red]{outcome.system}: the ranks' parameters differ[/] by at most "
                f"{outcome.replica_difference:.1e} of the largest one"
            )
        elif outcome.replica_difference == 0:
            say(f"{outcome.system}: all ranks that trained to the end have the same parameters")
    first, other = outcomes[0], outcomes[-1]
    if first.steps and other.steps:
        faster = first.mean_step() / other.mean_step()
        say(f"{first.system}'s mean step takes [bold]{faster:.2f}[/] times as long as {other.system}'s")


def _render(outcomes: list[Outcome], title: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("system")
    for name in (
        "steps", "step mean", "p50", "p99", "p99/p50", "waiting for gradients", "missing", "timeouts",
        "held-out loss", "training",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    return table


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.steps:
        return outcome.system, "0"
    return (
        outcome.system,
        str(len(outcome.steps)),
        format_seconds(outcome.mean_step()),
        format_seconds(outcome.p50()),
        format_seconds(outcome.p99()),
        f"{outcome.p99() / outcome.p50():.2f}",
        f"{outcome.waiting_share():.0%}",
        f"{outcome.missing_mean():.2%}",
        str(outcome.timeouts()),
        f"{outcome.final_loss:.4f}",
        format_seconds(outcome.seconds),
    )
