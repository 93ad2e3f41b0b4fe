"""One network namespace: a host's, or the switch's, own interfaces, firewall and settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from .commands import call
from .errors import LabError


class Namespace:
    """A namespace that exists from construction until :meth:`delete`."""

    def __init__(self, name: str) -> None:
        self.name = name
        call("ip", "netns", "add", name)
        try:
            self.ip("link", "set", "lo", "up")
            # Neighbour discovery and multicast reports would be traffic that nobody asked for.
            with contextlib.suppress(LabError):  # a kernel without IPv6
                self.call("tee", "/proc/sys/net/ipv6/conf/all/disable_ipv6", text="1")
        except BaseException:
            self.delete()
            raise

    @classmethod
    def existing(cls, name: str) -> Namespace:
        """One that somebody else has made."""
        found = cls.__new__(cls)
        found.name = name
        return found

    def ip(self, *arguments: str) -> str:
        """``ip`` as seen from inside."""
        return call("ip", "-n", self.name, *arguments)

    def tc(self, *arguments: str) -> str:
        """``tc`` as seen from inside."""
        return call("tc", "-n", self.name, *arguments)

    def bridge(self, *arguments: str) -> str:
        """``bridge`` as seen from inside."""
        return call("bridge", "-n", self.name, *arguments)

    def call(self, *command: str, text: str | None = None) -> str:
        """Run a short command inside; its output."""
        return call(*self.inside(command), text=text)

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` inside, as the same process."""
        return ["ip", "netns", "exec", self.name, *command]

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start ``command`` inside; options as for subprocess.Popen."""
        return subprocess.Popen(self.inside(command), **options)

    def stop_processes(self) -> None:
        """Whatever runs inside stands still until :meth:`resume_processes`."""
        self._signal(signal.SIGSTOP)

    def resume_processes(self) -> None:
        """End a stop."""
        self._signal(signal.SIGCONT)

    def kill_processes(self) -> None:
        """End whatever still runs inside, children of children too."""
        with contextlib.suppress(LabError):
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in call("ip", "netns", "pids", self.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def delete(self) -> None:
        """Remove it with all that is in it; nothing where it is gone already."""
        self.kill_processes()
        with contextlib.suppress(LabError):
            call("ip", "netns", "delete", self.name)
