"""What a soak does; everything a rank has to know fits in a line of JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

RANK_MODULE = "optireduce.trials.soak.rank"
TRAIN_RANK_MODULE = "optireduce.trials.soak.train_rank"
_MOST_CHAPTER_SECONDS = 300.0
_LONG_CHAPTER_SECONDS = 240.0
_PHASE_SECONDS = 5.0
_ENDING_SHARE = 0.15


@dataclass(frozen=True)
class Kind:
    """What the ranks of a chapter do."""

    name: str
    module: str


ALL_REDUCES = Kind("all-reduce", RANK_MODULE)
TRAINING = Kind("training", TRAIN_RANK_MODULE)


@dataclass(frozen=True)
class SoakPlan:
    """Chapters of equal length. Each has its own group, and all its processes are new, as after a restart by
    torchrun."""

    hosts: int
    seconds: float
    size: int = 1 << 20  # bytes of the bucket
    least_chapter_seconds: float = 25.0  # in which every fault has its two turns
    python: str = sys.executable  # the ranks' interpreter
    training: bool = True  # in every second chapter
    any_memory: bool = False  # it may grow: a sanitizer keeps what was freed, and the ranks' use says nothing
    drop: float = 0.0  # share of their packets that ranks drop themselves, where no firewall can

    @property
    def chapters(self) -> int:
        """At least two: a group must have been formed again after a loss."""
        return max(2, round(self.seconds / _MOST_CHAPTER_SECONDS))

    def kind(self, chapter: int) -> Kind:
        """Of a chapter, counted from 0."""
        return TRAINING if self.training and chapter % 2 else ALL_REDUCES

    @property
    def chapter_seconds(self) -> float:
        """From the moment all ranks are ready."""
        return max(self.least_chapter_seconds, self.seconds / self.chapters)

    @property
    def rotating_seconds(self) -> float:
        """Of a chapter: the rest is without the rank that was lost."""
        return self.chapter_seconds * (1 - _ENDING_SHARE)

    def rounds(self, faults: int) -> int:
        """How often each of so many faults comes: while half of the rounds last, memory may grow."""
        return max(2, int(self.rotating_seconds / (faults * _PHASE_SECONDS)) // 2 * 2)

    @property
    def noise_bytes(self) -> float:
        """What memory may grow by without being called a leak: in a short chapter lists of free buffers still
        fill (docs/reliability.md), in a long one the interpreter's allocator takes a little now and then."""
        if self.any_memory:
            return math.inf
        return (2 if self.chapter_seconds >= _LONG_CHAPTER_SECONDS else 16) << 20


@dataclass(frozen=True)
class Seat:
    """One rank's place in a chapter."""

    rank: int
    addresses: tuple[str, ...]
    interface: str
    size: int
    seconds: float
    folder: str = ""  # shared by all ranks: where those that train meet
    drop: float = 0.0

    def to_json(self) -> str:
        """For the command line of the rank's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Seat:
        """What to_json wrote."""
        values = json.loads(text)
        return cls(**values | {"addresses": tuple(values["addresses"])})


def seats(plan: SoakPlan, addresses: Sequence[str], interface: str, folder: str = "") -> list[str]:
    """Of all ranks, for their command lines."""
    return [
        Seat(rank, tuple(addresses), interface, plan.size, plan.chapter_seconds, folder, plan.drop).to_json()
        for rank in range(plan.hosts)
    ]
