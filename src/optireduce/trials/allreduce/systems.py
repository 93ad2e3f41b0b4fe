"""The competitors as one rank sees them: something that averages a bucket over all ranks, in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from ...config import Config
from ..stream import Bucket, ElasticCommunicator, Stream, missing_share
from .plan import GLOO, MPI, TAR_TCP, Seat, System

_PORT = 29_500  # free: every host is a new namespace
_OPERATION_SECONDS = 120.0
_FAULTY_OPERATION_SECONDS = 20.0  # a rank is missing on purpose: who waits for it should say so soon


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
    baselines: dict[str, Callable[[Seat], Averager]] = {GLOO: Gloo, TAR_TCP: TarOverTcp, MPI: Mpi}
    if system.is_ours:
        return Optireduce(seat, index, system)
    return baselines[system.name](seat)


class Gloo:
    """What torch users have today: a ring over TCP."""

    def __init__(self, seat: Seat) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        if not dist.is_initialized():  # one group serves all that use Gloo
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://{seat.addresses[0]}:{_PORT}",
                rank=seat.rank,
                world_size=seat.plan.ranks,
                timeout=timedelta(seconds=_OPERATION_SECONDS),
            )
        self._ranks = seat.plan.ranks

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
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


class TarOverTcp(Gloo):
    """Transpose AllReduce as the papers' TAR+TCP: our traffic pattern with TCP's reliability."""

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """Every rank gets one shard of all, averages it, and sends it to all."""
        tensor = self._torch.from_numpy(bucket)
        received = self._torch.empty_like(tensor)
        self._dist.all_to_all_single(received, tensor)
        shard = received.view(self._ranks, -1).mean(dim=0)
        self._dist.all_gather_into_tensor(tensor, shard)
        return {}


class Mpi:
    """MPICH over TCP, its own choice of algorithm."""

    def __init__(self, seat: Seat) -> None:
        os.environ |= {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": seat.interface,
            "FI_TCP_IFACE": seat.interface,
        }
        from mpi4py import MPI as library  # noqa: N811 - it starts MPI, with the variables above

        self._in_place = library.IN_PLACE
        self._world = library.COMM_WORLD
        self._close = library.Finalize
        if self._world.size != seat.plan.ranks:
            raise RuntimeError(
                f"MPI has {self._world.size} ranks instead of {seat.plan.ranks}: it must be MPICH, "
                "as pip install 'optireduce[mpi]' brings it"
            )

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """Sum and divide."""
        self._world.Allreduce(self._in_place, bucket)
        bucket /= self._world.size
        return {}

    def counters(self) -> dict[str, Any]:
        """MPI counts nothing that we could ask for."""
        return {}

    def close(self) -> None:
        """Leave the world."""
        self._close()


class Optireduce:
    """Ours, with the settings of its system."""

    def __init__(self, seat: Seat, index: int, system: System) -> None:
        settings: dict[str, Any] = {
            "interface": seat.interface,
            "timeout_seconds": _FAULTY_OPERATION_SECONDS if seat.faulty else _OPERATION_SECONDS,
        } | dict(system.settings)
        self._group = ElasticCommunicator(
            seat.rank,
            seat.plan.ranks,
            store=f"{seat.addresses[0]}:{_PORT + 1 + index}",
            config=Config(**settings),
            name=system.name,
        )
        self._stream = Stream(self._group)

    def average(self, bucket: Bucket) -> dict[str, Any]:
        """With the report of this rank."""
        report = self._stream.average(bucket)
        return {
            "operation": report.operation,
            "missing_share": missing_share(report),
            "clean": self._stream.clean,
            "repaired_bytes": report.repaired_bytes,
            "closed_by": report.closed_by,
            "deadline_seconds": report.deadline_seconds,
            "view": report.view,
            "members": list(report.members),
        }

    def counters(self) -> dict[str, Any]:
        """Those of optireduce's stats() that are numbers."""
        return {name: value for name, value in self._group.stats().items() if isinstance(value, (int, float))}

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
