"""A noisy neighbour: an extra host on the switch, part of nothing, that sends bursts or a flood to others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .bursts import Bursts
from .errors import LabError
from .namespaces import Namespace

_STOP_SECONDS = 5.0


class Background:
    """A sender that goes on until :meth:`stop`: it ends when its standard input does."""

    def __init__(self, host: Namespace, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"optireduce.lab.{module}", *arguments]
        self._process: subprocess.Popen[Any] = host.popen(command, stdin=subprocess.PIPE)

    @property
    def running(self) -> bool:
        """Whether the sender is alive."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it. May be repeated."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_bursts(host: Namespace, bursts: Bursts, addresses: Sequence[str]) -> Background:
    """From ``host`` to the addresses in turn."""
    return Background(host, "burst_sender", json.dumps(asdict(bursts)), *addresses)


def start_flood(host: Namespace, address: str, ports: Sequence[int], packets_per_second: int) -> Background:
    """From ``host`` to the ports of one address in turn."""
    if packets_per_second <= 0:
        raise LabError(f"packets_per_second = {packets_per_second!r} is not usable: it must be more than 0")
    return Background(host, "flood_sender", address, str(packets_per_second), *map(str, ports))
