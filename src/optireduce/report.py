"""What an operation and a training step tell about themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """How one all-reduce went on this rank."""

    operation: int
    """Number of the operation in its group, the same on every rank. -1 for one that needed no
    communication."""
    bytes: int
    """Size of the reduced buffer."""
    elapsed_seconds: float
    """From the local start to the local end."""
    repaired_bytes: int = 0
    """Bytes that came only after a repeated request."""
    lost_bytes: int = 0
    """Bytes that never came. 0 today: every operation runs to completion."""

    @property
    def loss_share(self) -> float:
        """Lost share of the buffer, from 0 to 1."""
        return self.lost_bytes / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class StepReport:
    """How the gradient exchange of one training step went on this rank."""

    step: int
    """Synchronised backward passes before this one; those under ``no_sync`` do not count."""
    buckets: int
    bytes: int
    elapsed_seconds: float
    """From the first bucket's start to the last one's end; overlaps with the backward pass."""
    repaired_bytes: int = 0
    lost_bytes: int = 0

    @property
    def loss_share(self) -> float:
        """Lost share of the step's gradient bytes, from 0 to 1."""
        return self.lost_bytes / self.bytes if self.bytes else 0.0
