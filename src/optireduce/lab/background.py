"""A noisy neighbour: an extra host on the switch, part of nothing, that sends bursts to the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .bursts import Bursts
from .namespaces import Namespace

_STOP_SECONDS = 5.0


class Background:
    """Bursts that last until :meth:`stop`."""

    def __init__(self, host: Namespace, bursts: Bursts, addresses: Sequence[str]) -> None:
        command = [
            sys.executable,
            "-m",
            "optireduce.lab.burst_sender",
            json.dumps(asdict(bursts)),
            *addresses,
        ]
        self._process: subprocess.Popen[Any] = host.popen(command, stdin=subprocess.PIPE)

    @property
    def running(self) -> bool:
        """Whether the sender is alive."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the bursts. May be repeated."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
