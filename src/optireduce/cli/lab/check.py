"""`optireduce lab check`: whether this machine can have a lab, by building one."""

from __future__ import annotations

import sys

from ...lab import ENVIRONMENTS, Lab, LabError, require_tools
from ..console import say
from ..errors import CommandFailed
from .options import become_able

# Nobody listens there: a refusal has come all the way back.
_KNOCK = """
import errno, socket, sys
with socket.socket() as door:
    door.settimeout(5)
    sys.exit(door.connect_ex((sys.argv[1], 9)) != errno.ECONNREFUSED)
"""


def check() -> None:
    """Build a lab of two hosts, send a packet through it and back, and remove it."""
    become_able()
    try:
        with Lab(hosts=2) as lab:
            reached = lab.run(0, [sys.executable, "-c", _KNOCK, lab.addresses[1]]).returncode == 0
    except LabError as error:
        raise CommandFailed(str(error)) from error
    if not reached:
        raise CommandFailed("a lab can be built here, but its hosts do not reach each other")
    say("[green]a lab can be built here[/]; nothing of it is left")
    for environment in ENVIRONMENTS.values():
        try:
            require_tools(environment)
        except LabError as error:
            say(f"[yellow]but not every environment[/]: {error}")
