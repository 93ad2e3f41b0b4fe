"""A progress bar for what is usually too quick to need one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..console import progress_bar

_QUIET_SECONDS = 2.0
_MB = 1_000_000


@contextmanager
def reading(total_bytes: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int], None]]:
    """Yields ``advance(bytes)``. The bar, in MB, shows up when reading takes more than a moment."""
    began = clock()
    done = 0
    shown = False
    bar = progress_bar()
    task = bar.add_task("reading logs, MB", total=total_bytes // _MB, note="")

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        bar.update(task, completed=done // _MB)
        if not shown and clock() - began > _QUIET_SECONDS:
            shown = True
            bar.start()

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
