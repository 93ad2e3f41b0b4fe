"""`optireduce lab replicas`: are all replicas equal to the bit, and does every gradient count once?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from ...lab import ON_TIME, Lab, calm, disturb, find_environment
from ...trials.calibrated import Scope, recall
from ...trials.places import Loopback
from ...trials.replicas.outcome import Run
from ...trials.replicas.plan import ReplicaPlan
from ...trials.replicas.run import Event, run_replicas
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed, UsageError
from ..units import parse_list
from .options import Hosts, Rate, Seed, become_able
from .results import Out, failures_as_errors, write_result

_SCENARIOS = ("tail3", "loss3", "straggler", "kill", "loopback")
_CALIBRATED_BYTES = 4 << 20
_LOSS = 0.03
_LATE = find_environment("late").late
_LOOPBACK_VALUES = 25 << 20  # 100 MB
_LOOPBACK_STEPS = 20
_VALUES = 200_000  # beside 0.84 million parameters of the transformer

Advance = Callable[[int], None]


def replicas(
    scenarios: Annotated[str, typer.Option(help=f"Of {','.join(_SCENARIOS)}.")] = ",".join(_SCENARIOS),
    hosts: Hosts = 4,
    steps: Annotated[int, typer.Option(min=20, help=f"Loopback: {_LOOPBACK_STEPS} at most.")] = 160,
    rate: Rate = "200mbit",
    seed: Seed = 1,
    out: Out = None,
) -> None:
    """Train with AdamW under faults; compare parameters and optimizer state of all members, bit by bit.

    `tail3` and `loss3` are environments, `straggler` makes a random rank 300 ms late in 15 % of the steps,
    `kill` kills one rank, `loopback` reduces 100 MB. A counter among the parameters has a gradient of one:
    with what `flush` adds, each of its values must be the number of steps. A removed rank's own samples are
    excepted, and counted. Exit code 1 if replicas differ or a value is off.
    """
    chosen = parse_list(scenarios, "--scenarios", _check)
    become_able()
    runs: dict[str, Run] = {}
    with failures_as_errors(), progress_bar(redraws_itself=False) as progress:
        for name in chosen:
            plan = _plan(name, steps, seed)
            bar = progress.add_task(f"{name:10}", total=plan.steps, note="starting ranks")

            def advance(step: int, bar: Any = bar) -> None:
                progress.update(bar, completed=step + 1, note="", refresh=True)

            runs[name] = _run(name, plan, hosts, rate, advance)
    print_table(table(runs))
    write_result(out, {name: asdict(run) for name, run in runs.items()})
    problems = [problem for name, run in runs.items() for problem in problems_of(name, run)]
    if problems:
        raise CommandFailed("; ".join(problems))
    say("[green]equal bits in every check, and every gradient counted once[/]")


def _check(name: str) -> str:
    if name not in _SCENARIOS:
        raise UsageError(f"--scenarios: {name!r} is not one of {', '.join(_SCENARIOS)}")
    return name


def _plan(name: str, steps: int, seed: int) -> ReplicaPlan:
    if name == "loopback":
        return ReplicaPlan(min(steps, _LOOPBACK_STEPS), values=_LOOPBACK_VALUES, seed=seed)
    settings = {"drop": _LOSS} if name == "loss3" and not _has_firewall() else {}
    return ReplicaPlan(
        steps,
        values=_VALUES,
        transformer=True,
        late=_LATE if name == "straggler" else ON_TIME,
        seed=seed,
        settings=settings,
    )


def _has_firewall() -> bool:
    """Without one the ranks drop packets themselves."""
    return shutil.which("iptables") is not None


def _run(name: str, plan: ReplicaPlan, hosts: int, rate: str, advance: Advance) -> Run:
    if name == "loopback":
        return run_replicas(Loopback(hosts), plan, advance=advance)
    victim = hosts - 1
    kills = [Event("kill", plan.steps // 3, lambda ranks: ranks.processes[victim].kill())]
    with Lab(hosts=hosts, rate=rate) as lab:
        try:
            return run_replicas(
                lab,
                plan,
                begin=lambda: _disturb(lab, name, plan),
                events=kills if name == "kill" else [],
                may_die={victim} if name == "kill" else frozenset(),
                advance=advance,
            )
        finally:
            calm(lab)


def _disturb(lab: Lab, name: str, plan: ReplicaPlan) -> None:
    if name == "tail3" or (name == "loss3" and _has_firewall()):
        scope = Scope(len(lab.addresses), lab.rate, _CALIBRATED_BYTES)
        disturb(lab, recall(find_environment(name), scope)[0], plan.seed)


def table(runs: dict[str, Run]) -> Table:
    """One row a scenario."""
    shown = Table(pad_edge=False)
    for column in ("scenario", "bits", "checks", "ranks at the end", "steps", "counter - steps", "allowed",
                   "missing", "views", "members"):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for name, run in runs.items():
        unequal = run.unequal()
        shown.add_row(
            name,
            f"[red]different after step {unequal[0]}[/]" if unequal else "equal",
            str(len(run.checks())),
            str(len(run.finished())),
            str(run.planned_steps),
            f"{run.deviation():g}",
            f"{run.allowed_deviation():.2g}",
            f"{run.missing_mean():.2%}",
            str(len(run.views())),
            ", ".join(map(str, run.last_members())),
        )
    return shown


def problems_of(name: str, run: Run) -> list[str]:
    """What must not be; empty when all is well."""
    found = [f"{name}: replicas differ after step {step}" for step in run.unequal()[:1]]
    if not run.deviation() <= run.allowed_deviation():
        found.append(f"{name}: a counter is off by {run.deviation():g} steps")
    for story in run.ranks:
        if story.failed is not None:
            found.append(f"{name}: rank {story.rank} failed: {story.failed['error']}")
    return found
