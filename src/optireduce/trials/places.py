"""Where ranks run: the hosts of a lab or, where there are no namespaces, this machine as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any, Protocol


class Place(Protocol):
    """What the ranks of a trial need to know of their hosts; a Lab has it."""

    interface: str
    addresses: tuple[str, ...]

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host."""
        ...


class Loopback:
    """All hosts are this one."""

    interface = "lo"

    def __init__(self, hosts: int) -> None:
        self.addresses = ("127.0.0.1",) * hosts

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program here."""
        return subprocess.Popen(command, **options)


class Shared:
    """Hosts with several ranks each: what a trial takes for a host is one of the ranks."""

    def __init__(self, place: Place, per_host: int) -> None:
        self._place, self._per_host = place, per_host
        self.interface = place.interface
        self.addresses = tuple(address for address in place.addresses for _ in range(per_host))

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a rank's program on its host."""
        return self._place.popen(host // self._per_host, command, **options)
