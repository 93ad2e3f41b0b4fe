"""Values of slices that differ, for other ranks to fetch."""

from __future__ import annotations

import threading

import torch

_MOST = 4  # slices; older ones are forgotten


class Shelf:
    """The training thread puts, connection threads take."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[tuple[int, int], torch.Tensor] = {}

    def put(self, step: int, index: int, values: torch.Tensor) -> None:
        """The bytes of a slice before a step."""
        with self._changed:
            self._kept[step, index] = values
            while len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]
            self._changed.notify_all()

    def take(self, step: int, index: int, patience_seconds: float) -> torch.Tensor | None:
        """The same; None: they are not there in time."""
        with self._changed:
            self._changed.wait_for(lambda: (step, index) in self._kept, patience_seconds)
            return self._kept.get((step, index))
