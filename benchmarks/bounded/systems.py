"""The competitors as one rank sees them: something that averages a bucket over all ranks, in place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import numpy as np

import optireduce

from .plan import Seat, System

_PORT = 29_500  # free: every host is a new namespace
_OPERATION_SECONDS = 120.0
_FAULTY_OPERATION_SECONDS = 20.0  # a rank is missing on purpose: who waits for it should say so soon

Bucket = np.ndarray[Any, np.dtype[np.float32]]


class Averager(Protocol):
    """One rank's end of a group."""

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """Average in place; what is known about this operation, as plain JSON values."""
        ...

    def counters(self) -> dict[str, Any]:
        """Counters since the group formed."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


def join(seat: Seat, index: int, system: System) -> Averager:
    """Form the group of the index-th system with the other ranks."""
    return Gloo(seat) if system.is_gloo else Optireduce(seat, index, system)


class Gloo:
    """What torch users have today."""

    def __init__(self, seat: Seat) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{seat.addresses[0]}:{_PORT}",
            rank=seat.rank,
            world_size=seat.plan.hosts,
            timeout=timedelta(seconds=_OPERATION_SECONDS),
        )
        self._ranks = seat.plan.hosts

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """Sum and divide: Gloo has no mean."""
        tensor = self._torch.from_numpy(bucket)
        self._dist.all_reduce(tensor)
        tensor /= self._ranks
        return {}

    def counters(self) -> dict[str, Any]:
        """Gloo counts nothing."""
        return {}

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()


class Optireduce:
    """Ours, with the settings of its system."""

    def __init__(self, seat: Seat, index: int, system: System) -> None:
        settings: dict[str, Any] = {
            "interface": seat.interface,
            "timeout_seconds": _FAULTY_OPERATION_SECONDS if seat.faulty else _OPERATION_SECONDS,
        } | dict(system.settings)
        self._group = optireduce.Communicator(
            seat.rank,
            seat.plan.hosts,
            store=f"{seat.addresses[0]}:{_PORT + 1 + index}",
            config=optireduce.Config(**settings),
            name=system.name,
        )

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """With the report of this rank. Fields that a build does not have yet are 0 or absent."""
        report = self._group.all_reduce(bucket, op="mean")
        closed_by = getattr(report, "closed_by", None)
        return {
            "operation": report.operation,
            "lost_share": report.loss_share,
            "contributions_lost_share": getattr(report, "contributions_lost_share", 0.0),
            "reduced_lost_share": getattr(report, "reduced_lost_share", 0.0),
            "repaired_bytes": report.repaired_bytes,
            "closed_by": None if closed_by is None else str(closed_by),
            "bound_seconds": getattr(report, "bound_seconds", 0.0),
        }

    def counters(self) -> dict[str, Any]:
        """Those of optireduce's stats() that are numbers."""
        return {name: value for name, value in self._group.stats().items() if isinstance(value, (int, float))}

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
