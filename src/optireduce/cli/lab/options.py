"""Options that all commands of the lab share, and their way from text to a lab."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...lab import Environment, LabError, find_environment, require_all_reduces, require_tools
from ...lab.privilege import obtain
from ..console import say
from ..errors import CommandFailed, UsageError
from ..units import parse_size

EnvironmentName = Annotated[str, typer.Argument(help="One of `optireduce lab environments`.")]
Hosts = Annotated[int, typer.Option(min=2, max=200, help="Hosts on the switch.")]
Rate = Annotated[str, typer.Option(help="Of every link, each way, e.g. 200mbit; none: unshaped.")]
Size = Annotated[str, typer.Option("--bytes", help="Of the float32 bucket; K and M are powers of 1024.")]
Seed = Annotated[int, typer.Option(help="Of bursts and pauses.")]


def become_able() -> None:
    """Root may build a lab at once; others run this command again inside namespaces of their own."""
    try:
        obtain("optireduce.cli", sys.argv[1:])
    except LabError as error:
        raise CommandFailed(str(error)) from error


def chosen_environment(name: str, trains: bool = False) -> Environment:
    """By its name; one that this machine cannot have, or that would do nothing, is refused before anything
    begins."""
    try:
        environment = find_environment(name)
        require_tools(environment)
        if not trains:
            require_all_reduces(environment)
    except LabError as error:
        raise UsageError(str(error)) from error
    return environment


def chosen_rate(rate: str) -> str | None:
    """None: as fast as the machine."""
    return None if rate == "none" else rate


def chosen_size(size: str, hosts: int) -> int:
    """Whole float32 values, as many for each host."""
    unit = 4 * hosts
    rounded = parse_size(size, "--bytes") // unit * unit
    if rounded == 0:
        raise UsageError(f"--bytes: {size!r} is not a value for each of {hosts} hosts; write at least {unit}")
    return rounded


def say_environment(environment: Environment, line: str) -> None:
    """What the network will be like."""
    say(f"[bold]{environment.name}[/]: {line}")
