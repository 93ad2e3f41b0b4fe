"""`optireduce lab run`: the user's own program on every host of a lab."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ...lab import Environment, Lab, LabError, disturb
from ...trials.calibrated import Scope, recall
from ..errors import CommandFailed, UsageError
from .options import (
    EnvironmentName,
    Hosts,
    Rate,
    Seed,
    become_able,
    chosen_environment,
    chosen_rate,
    say_environment,
)
from .programs import Programs

_CALIBRATED_BYTES = 4 << 20
_STOPPED_SECONDS = 3.0


def run(
    context: typer.Context,
    environment: EnvironmentName,
    hosts: Hosts = 4,
    rate: Rate = "200mbit",
    seed: Seed = 1,
    fault_after: Annotated[
        float, typer.Option(min=0, help="Seconds until `stop` and `crash` strike the last host.")
    ] = 30.0,
) -> None:
    """Run a program on every host: `optireduce lab run tail3 --hosts 4 -- python train.py`.

    It finds RANK, WORLD_SIZE, LOCAL_RANK (0), MASTER_ADDR and MASTER_PORT as torchrun would set them, and the
    network interface for Gloo and optireduce. Output lines begin with the rank. The first program that fails
    ends all, except where hosts are meant to die.
    """
    command = context.args
    if not command:
        raise UsageError("no program to run: write it after --, as in `lab run tail3 -- python train.py`")
    chosen = chosen_environment(environment)
    become_able()
    chosen, line = recall(chosen, Scope(hosts, chosen_rate(rate), _CALIBRATED_BYTES))
    say_environment(chosen, line)
    try:
        with Lab(hosts=hosts, rate=chosen_rate(rate)) as lab:
            code = _run(lab, chosen, command, seed, fault_after)
    except LabError as error:
        raise CommandFailed(str(error)) from error
    if code != 0:
        raise CommandFailed(f"a program ended with code {code}")


def _run(lab: Lab, environment: Environment, command: Sequence[str], seed: int, fault_after: float) -> int:
    victim = len(lab.addresses) - 1
    with Programs(lab, command) as programs:
        disturb(lab, environment, seed)
        expected = victim if environment.is_fault else None
        return programs.wait(expected, _fault(lab, environment, victim, fault_after))


def _fault(lab: Lab, environment: Environment, victim: int, after: float) -> Callable[[], None]:
    """Strikes when its time has come; to be called often."""
    began = time.monotonic()
    due: list[tuple[float, Callable[[int], None]]] = []
    if environment.crashes:
        due = [(after, lab.kill_host)]
    elif environment.stops:
        due = [(after, lab.stop_host), (after + _STOPPED_SECONDS, lab.resume_host)]

    def tick() -> None:
        while due and time.monotonic() - began >= due[0][0]:
            due.pop(0)[1](victim)

    return tick
