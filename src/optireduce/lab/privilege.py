"""A lab without root: the same command again, inside namespaces in which this user is root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from .commands import call
from .errors import LabError

_MARK = "OPTIREDUCE_LAB_INSIDE"  # set in the second run: there is no third
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_TRY_SECONDS = 10.0


def obtain(module: str, arguments: Sequence[str]) -> None:
    """Return where this process may build a lab; elsewhere become ``python -m module arguments`` that may.

    The new process has a network and a table of mounts of its own, so what it builds nobody else sees.
    """
    if os.environ.get(_MARK):
        call("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` and `iptables` keep their files
        del os.environ[_MARK]  # programs in the lab are as any others
        return
    if os.geteuid() == 0:
        return
    problem = why_not()
    if problem is not None:
        raise LabError(f"a lab needs root (run it with sudo) or unprivileged user namespaces: {problem}")
    os.environ[_MARK] = "1"
    os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, "-m", module, *arguments])


def why_not() -> str | None:
    """What keeps an ordinary user from a lab here; None: nothing."""
    if shutil.which(_UNSHARE[0]) is None:
        return "the program 'unshare' (package util-linux) is missing"
    try:
        done = subprocess.run(
            [*_UNSHARE, "true"], capture_output=True, text=True, timeout=_TRY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"'unshare' did not end within {_TRY_SECONDS:.0f} s"
    return None if done.returncode == 0 else done.stderr.strip() or f"'unshare' gave code {done.returncode}"
