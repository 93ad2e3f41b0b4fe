"""A lab must not outlive its process: SIGTERM, and SIGHUP when a terminal is closed, become an ordinary exit,
which runs ``with`` blocks."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class TerminationAsExit:
    """Between :meth:`begin` and :meth:`end`, these signals raise SystemExit, as SIGINT raises
    KeyboardInterrupt.

    A program that handles one itself keeps its handler (and under nohup SIGHUP stays ignored), and only the
    main thread may set one.
    """

    def __init__(self) -> None:
        self._taken: list[signal.Signals] = []

    def begin(self) -> None:
        """Take over the signals that nobody else has."""
        if threading.current_thread() is threading.main_thread():
            self._taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
            for number in self._taken:
                signal.signal(number, _exit)

    def end(self) -> None:
        """Give them back."""
        if threading.current_thread() is threading.main_thread():
            for number in self._taken:
                signal.signal(number, signal.SIG_DFL)
            self._taken = []


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
