"""One rank of the benchmark.

All backends are groups of the same processes and take turns, so that whatever else the machine does hits
them alike. Before each timed operation there is a Gloo barrier: the time is that of an all-reduce which
all ranks enter together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING, Any

from ...config import Config
from ..ranks import Seat, join_group
from .plan import ELEMENT_BYTES, Block, Plan, Verified

if TYPE_CHECKING:
    import torch

    Group = Any  # torch.distributed.ProcessGroup, which carries no useful type

OPERATION_SECONDS = 120.0
_PATTERN_PERIOD = 65_521  # elements


def run_rank(seat: Seat, plan: Plan, all_done: Barrier) -> None:
    """Join the groups, measure every size with every backend, report through the seat (rank 0 only)."""
    if plan.receive_buffer_bytes is not None:
        os.environ["OPTIREDUCE_RECEIVE_BUFFER_BYTES"] = str(plan.receive_buffer_bytes)

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=OPERATION_SECONDS)
    join_group(seat, "gloo", timeout)
    groups = {name: _new_group(name, timeout) for name in plan.backends}
    rank = _Rank(seat, plan, groups, all_done)
    for size in plan.sizes:
        rank.measure_size(size)
    dist.barrier()
    dist.destroy_process_group()


def _new_group(name: str, timeout: timedelta) -> Group:
    """``name``: a backend, ours perhaps with what its packets prove (``optireduce:mac``)."""
    import torch.distributed as dist

    backend, _, auth = name.partition(":")
    options = Config.from_env(auth=auth) if auth else None
    return dist.new_group(backend=backend, timeout=timeout, pg_options=options)


class _Rank:
    def __init__(self, seat: Seat, plan: Plan, groups: dict[str, Group], all_done: Barrier) -> None:
        self.seat = seat
        self.plan = plan
        self.groups = groups
        self.all_done = all_done

    def measure_size(self, size: int) -> None:
        for backend in self.plan.backends:
            self._report(Verified(backend, size, self._count_wrong(backend, size)))
        # Zeros stay zeros however often they are summed in place.
        tensor = self._pattern([self.seat.rank], size).zero_()
        for round_index in range(self.plan.rounds):
            for backend in self.plan.order_in(round_index):
                self._report(self._measure_block(backend, size, round_index, tensor))

    def _measure_block(self, backend: str, size: int, round_index: int, tensor: torch.Tensor) -> Block:
        for _ in range(self.plan.warmup):
            self._timed(backend, tensor)
        before = socket_drops(backend, self.groups[backend])
        iterations = self.plan.iterations_for(size, self.seat.size)
        samples = [self._timed(backend, tensor) for _ in range(iterations)]
        after = socket_drops(backend, self.groups[backend])
        seconds = self._over_ranks([wall for wall, _ in samples], "MAX")
        cpu = sum(cpu for _, cpu in samples)
        if before is None or after is None:
            return Block(backend, size, round_index, tuple(seconds), self._over_ranks([cpu], "SUM")[0], None)
        total_cpu, drops = self._over_ranks([cpu, after - before], "SUM")
        return Block(backend, size, round_index, tuple(seconds), total_cpu, int(drops))

    def _timed(self, backend: str, tensor: torch.Tensor) -> tuple[float, float]:
        """Wall seconds and CPU seconds (user + system, all threads of this process) of one all-reduce."""
        import torch.distributed as dist

        group = self.groups[backend]
        dist.barrier()
        cpu = time.process_time()
        start = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        wall = time.perf_counter() - start
        # A rank may return while its threads still send to others: that counts too. This barrier only sleeps.
        self.all_done.wait(OPERATION_SECONDS)
        return wall, time.process_time() - cpu

    def _count_wrong(self, backend: str, size: int) -> int:
        import torch.distributed as dist

        tensor = self._pattern([self.seat.rank], size)
        dist.all_reduce(tensor, group=self.groups[backend])
        wrong = int((tensor != self._pattern(range(self.seat.size), size)).sum())
        return int(self._over_ranks([wrong], "SUM")[0])

    def _pattern(self, ranks: Iterable[int], size: int) -> torch.Tensor:
        return pattern(ranks, size // ELEMENT_BYTES[self.plan.dtype], self.plan.dtype)

    def _over_ranks(self, values: list[float], how: str) -> list[float]:
        import torch
        import torch.distributed as dist

        combined = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(combined, op=getattr(dist.ReduceOp, how))
        return [float(value) for value in combined]

    def _report(self, record: Block | Verified) -> None:
        if self.seat.rank == 0:
            self.seat.send(record)


def pattern(ranks: Iterable[int], elements: int, dtype: str) -> torch.Tensor:
    """The sum of what these ranks contribute: integers from -7 to 7, exact in every dtype up to 36 ranks.

    Random integers repeated with a prime period: data that lands in the wrong place does not go unnoticed.
    """
    import torch

    contributions = [
        torch.randint(-7, 8, (_PATTERN_PERIOD,), generator=torch.Generator().manual_seed(rank))
        for rank in ranks
    ]
    period = torch.stack(contributions).sum(0).to(getattr(torch, dtype))
    return period.repeat(elements // _PATTERN_PERIOD + 1)[:elements].clone()


def socket_drops(backend: str, group: Group) -> int | None:
    """Datagrams that this rank lost because a receive buffer was full, since its group formed. None for
    backends that do not count."""
    if backend.partition(":")[0] != "optireduce":
        return None
    import optireduce

    return int(optireduce.stats(group)["socket_drops"])
