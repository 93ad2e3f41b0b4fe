"""Compute stragglers: from time to time all programs of one random host stand still."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import LabError
from .namespaces import Namespace


@dataclass(frozen=True)
class Pauses:
    """Exponential times with these means: still, and between."""

    still_ms: float
    between_ms: float

    def __post_init__(self) -> None:
        for name in ("still_ms", "between_ms"):
            value = getattr(self, name)
            if value <= 0:
                raise LabError(f"{name} = {value!r} is not usable: it must be more than 0")


class Pausing:
    """Pauses that go on until :meth:`stop`, which leaves all hosts running."""

    def __init__(self, hosts: Sequence[Namespace], pauses: Pauses, seed: int) -> None:
        self._hosts = list(hosts)
        self._pauses = pauses
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="optireduce-pauses", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the pauses. May be repeated."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._waited(self._pauses.between_ms):
            host = self._chance.choice(self._hosts)
            host.stop_processes()
            try:
                self._waited(self._pauses.still_ms)
            finally:
                host.resume_processes()

    def _waited(self, mean_ms: float) -> bool:
        """Wait for a random time; whether it is time to end."""
        return self._ending.wait(self._chance.expovariate(1e3 / mean_ms))
