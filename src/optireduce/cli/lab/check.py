"""`optireduce lab check`: whether this machine can have a lab, by building one."""

from __future__ import annotations

from ...lab import Lab, LabError
from ..console import say
from ..errors import CommandFailed
from .options import become_able


def check() -> None:
    """Build a lab of two hosts, send a packet through it, and remove it."""
    become_able()
    try:
        with Lab(hosts=2) as lab:
            lab.set_loss(0.0)
            lab.run(0, ["true"], check=True)
    except LabError as error:
        raise CommandFailed(str(error)) from error
    say("[green]a lab can be built here[/]; nothing of it is left")
