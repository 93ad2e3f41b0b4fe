"""`optireduce lab check`: whether this machine can have a lab, by building one."""

from __future__ import annotations

from ...lab import ENVIRONMENTS, Lab, LabError, require_tools
from ..console import say
from ..errors import CommandFailed
from .options import become_able


def check() -> None:
    """Build a lab of two hosts, send a packet through it, and remove it."""
    become_able()
    try:
        with Lab(hosts=2) as lab:
            lab.run(0, ["true"], check=True)
    except LabError as error:
        raise CommandFailed(str(error)) from error
    say("[green]a lab can be built here[/]; nothing of it is left")
    for environment in ENVIRONMENTS.values():
        try:
            require_tools(environment)
        except LabError as error:
            say(f"[yellow]but not every environment[/]: {error}")
