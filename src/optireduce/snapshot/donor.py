"""What other ranks asked this one for. Connection threads ask and fetch, the training thread captures.

A capture is taken at the boundary of one step, the same on all donors. Every donor hashes its whole state and
copies one part of it, so that training is held up as little as possible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..check.shelf import Shelf
from .requests import PATIENCE_SECONDS
from .state import Image, part_of

Standing = Literal["training", "left behind", "finished"]

_KEPT_SECONDS = 300.0  # a capture that nobody fetches is forgotten after this


@dataclass(frozen=True)
class Wanted:
    """A capture that somebody asks for."""

    step: int
    part: int
    parts: int
    pause: bool


@dataclass(frozen=True)
class Boundary:
    """A donor's state between two steps, described but not copied."""

    shared: Image
    buffers: Image
    completed: int
    """Operations of the engine, and their digest."""
    digest: int
    bytes_per_second: float
    """How fast it may be sent; 0: no limit."""


@dataclass(frozen=True)
class Capture:
    """What is kept for one rank until it has fetched it."""

    answer: dict[str, Any]
    pieces: dict[str, torch.Tensor]
    """By name, as bytes."""
    bytes_per_second: float
    taken_at: float = field(default_factory=time.monotonic)


class Donor:
    """Requests and captures, by the rank that asked; a rank has at most one of either."""

    def __init__(self) -> None:
        self.step = 0
        self.standing: Standing = "training"
        self.is_asked = False  # read by the training thread in every step, without the lock
        self.given = 0
        self.shelf = Shelf()
        self._changed = threading.Condition()
        self._wanted: dict[int, Wanted] = {}
        self._captures: dict[int, Capture] = {}

    # --- Connection threads ---

    def status(self) -> dict[str, Any]:
        """The step that this rank is in, and whether it can give a snapshot."""
        return {"step": self.step, "standing": self.standing}

    def ask(self, rank: int, wanted: Wanted) -> dict[str, Any]:
        """Begin a capture; an earlier one of the same rank is forgotten."""
        with self._changed:
            self._captures.pop(rank, None)
            if wanted.step > self.step and self.standing == "training":
                self._wanted[rank] = wanted
                self.is_asked = True
            return self.status()

    def ready(self, rank: int) -> dict[str, Any]:
        """How the capture is going, after a moment in which it may be taken."""
        with self._changed:
            self._changed.wait_for(
                lambda: rank not in self._wanted or self.standing != "training", PATIENCE_SECONDS
            )
            capture = self._captures.get(rank)
            waits = rank in self._wanted and self.standing == "training"
            return self.status() | {"waits": waits, "capture": capture.answer if capture else None}

    def piece(self, rank: int, name: str) -> tuple[torch.Tensor, float] | None:
        """A part of the capture, and how fast it may be sent."""
        with self._changed:
            capture = self._captures.get(rank)
        if capture is None or name not in capture.pieces:
            return None
        return capture.pieces[name], capture.bytes_per_second

    def release(self, rank: int) -> None:
        """The rank has what it needs, or gave up."""
        with self._changed:
            self._wanted.pop(rank, None)
            self.given += self._captures.pop(rank, None) is not None
            self.is_asked = bool(self._wanted)

    def forget_old(self) -> None:
        """Captures of ranks that did not come back for them."""
        now = time.monotonic()
        with self._changed:
            old = [rank for rank, each in self._captures.items() if now - each.taken_at > _KEPT_SECONDS]
            for rank in old:
                del self._captures[rank]

    # --- The training thread ---

    def stop(self, standing: Standing) -> None:
        """This rank gives no snapshots from now on."""
        with self._changed:
            self.standing = standing
            self._wanted.clear()
            self.is_asked = False
            self._changed.notify_all()

    def resume(self) -> None:
        """This rank trains with the others again."""
        with self._changed:
            self.standing = "training"

    def capture(self, step: int, boundary: Callable[[], Boundary | None]) -> list[int]:
        """Serve the requests for this step; the ranks that ask the group to pause for them."""
        with self._changed:
            due = {rank: wanted for rank, wanted in self._wanted.items() if wanted.step <= step}
        taken: dict[int, Capture] = {}
        now = {rank: wanted for rank, wanted in due.items() if wanted.step == step}
        if now and (here := boundary()) is not None:
            answer = _answer(step, here)
            taken = {rank: _capture(answer, here, wanted) for rank, wanted in now.items()}
        with self._changed:
            for rank, wanted in due.items():
                if self._wanted.get(rank) == wanted:  # it may have asked anew meanwhile
                    del self._wanted[rank]
                    if rank in taken:
                        self._captures[rank] = taken[rank]
            self.is_asked = bool(self._wanted)
            self._changed.notify_all()
        return [rank for rank in taken if now[rank].pause]


def _answer(step: int, here: Boundary) -> dict[str, Any]:
    return {
        "step": step,
        "completed": here.completed,
        "operations": here.digest,
        "shared": {
            "digest": here.shared.digest(),
            "manifest": len(here.shared.manifest),
            "bytes": here.shared.size,
        },
        "buffers": {
            "digest": here.buffers.digest(),
            "manifest": len(here.buffers.manifest),
            "bytes": here.buffers.size,
        },
    }


def _capture(answer: dict[str, Any], here: Boundary, wanted: Wanted) -> Capture:
    pieces = {
        "manifest": _bytes_of(here.shared.manifest),
        "part": here.shared.copy(*part_of(here.shared.size, wanted.part, wanted.parts)),
        "buffers manifest": _bytes_of(here.buffers.manifest),
        "buffers": here.buffers.copy(0, here.buffers.size),
    }
    return Capture(answer, pieces, here.bytes_per_second)


def _bytes_of(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
