"""The system's own tools, called so that none can hang and a failure says what the tool said."""

from __future__ import annotations

import os
import shutil
import subprocess

from .errors import LabError

TOOLS = ("ip", "bridge", "tc")  # all of the package iproute2
_LIMIT_SECONDS = 30.0  # each takes milliseconds; more means that the kernel is stuck


def check_requirements() -> None:
    """Raise LabError that names everything this machine lacks."""
    lacking = [] if os.geteuid() == 0 else ["root (run it with sudo)"]
    lacking += [f"the program {tool!r}" for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        raise LabError(f"a lab of network namespaces needs {', '.join(lacking)}")


def call(*command: str, text: str | None = None) -> str:
    """Run a tool with ``text`` as its input; its output."""
    try:
        done = subprocess.run(
            command, input=text or "", capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise LabError(f"a lab needs the program {command[0]!r}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)!r} did not end within {_LIMIT_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)!r} failed: {done.stderr.strip() or f'code {done.returncode}'}")
    return done.stdout
