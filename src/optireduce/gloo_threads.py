"""Gloo's own threads, seen from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

_NAME = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_STEP_SECONDS = 1e-3
_LIMIT_SECONDS = 1.0


def let_them_rest() -> None:
    """Wait until Gloo's threads have nothing left to do, for a second at most.

    They drop an operation's tensors after its end is known, and need the interpreter's lock for that. Who
    frees the group meanwhile and holds the lock waits for them, and they for it, for ever: torch does so
    where a DDP model outlives its group, in the destructor of DDP's reducer.
    """
    deadline = time.monotonic() + _LIMIT_SECONDS
    while True:
        time.sleep(_STEP_SECONDS)  # gives up the lock: whoever waits for it gets on
        if not _any_runs() or time.monotonic() > deadline:
            return


def _any_runs() -> bool:
    return any(_is_gloo_and_runs(thread) for thread in os.listdir(_TASKS))


def _is_gloo_and_runs(thread: str) -> bool:
    try:
        name, _, rest = (_TASKS / thread / "stat").read_text().rpartition(")")
    except OSError:  # it has ended
        return False
    return name.endswith(f"({_NAME}") and rest.split()[0] == "R"
