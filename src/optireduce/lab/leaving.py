"""A lab must not outlive its process: SIGTERM becomes an ordinary exit, which runs ``with`` blocks."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn


class TerminationAsExit:
    """Between :meth:`begin` and :meth:`end`, SIGTERM raises SystemExit, as SIGINT raises KeyboardInterrupt.

    A program that handles SIGTERM itself keeps its handler, and only the main thread may set one.
    """

    def __init__(self) -> None:
        self._active = False

    def begin(self) -> None:
        """Take SIGTERM over where nobody else has."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit)
            self._active = True

    def end(self) -> None:
        """Give it back."""
        if self._active and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._active = False


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
