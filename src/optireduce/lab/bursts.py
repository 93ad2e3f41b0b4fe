"""What a noisy neighbour is told."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import LabError


@dataclass(frozen=True)
class Bursts:
    """On and off times are exponential with these means; ``mbit`` is the speed while on, headers included."""

    on_ms: float
    off_ms: float
    mbit: float
    seed: int

    def __post_init__(self) -> None:
        if self.on_ms <= 0:
            raise LabError(f"on_ms = {self.on_ms!r} is not usable: it must be more than 0")
        if self.off_ms < 0:
            raise LabError(f"off_ms = {self.off_ms!r} is not usable: it must be 0 or more")
        if self.mbit <= 0:
            raise LabError(f"mbit = {self.mbit!r} is not usable: it must be more than 0")
