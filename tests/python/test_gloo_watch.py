"""Collectives in Gloo end with an error that names the rank that is gone, long before any timeout."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT_SECONDS, ProcessPool
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce

RANKS, VICTIM = 3, 2
# Long enough for a live rank on a busy machine, short enough to wait for a dead one.
SHORT = replace(CONFIG, exact_silence_seconds=2.0, linger_seconds=0.5)


def barrier(rank: int) -> None:
    dist.barrier()


def broadcast_from_the_victim(rank: int) -> None:
    dist.broadcast(torch.zeros(1_000), VICTIM)


def gather(rank: int) -> None:
    dist.gather(torch.zeros(3), [torch.zeros(3) for _ in range(RANKS)] if rank == 0 else None)
    dist.barrier()  # only the root of a gather waits


def receive(rank: int) -> None:
    dist.recv(torch.zeros(3), VICTIM)


def largest(rank: int) -> None:
    dist.all_reduce(torch.zeros(3), dist.ReduceOp.MAX)


def future(rank: int) -> None:
    dist.barrier(async_op=True).get_future().wait()


def objects(rank: int) -> None:
    dist.all_gather_object([None] * RANKS, rank)


def buffers(rank: int) -> None:
    """DDP broadcasts them from C++."""
    model = torch.nn.BatchNorm1d(2)
    DistributedDataParallel(model)


def sum_in_the_engine(rank: int) -> None:
    dist.all_reduce(torch.zeros(3))


COLLECTIVES = [
    barrier, broadcast_from_the_victim, gather, receive, largest, future, objects, buffers, sum_in_the_engine,
]  # fmt: skip


def error_of(collective: Callable[[int], None], rank: int) -> tuple[type[BaseException], str, Any]:
    with pytest.raises(RuntimeError) as caught:
        collective(rank)
    return type(caught.value), str(caught.value), getattr(caught.value, "ranks", None)


def check_lost(found: tuple[type[BaseException], str, Any], in_future: bool = False) -> None:
    kind, text, ranks = found
    assert f"rank {VICTIM} was silent" in text, found
    if not in_future:  # torch turns what a future holds into plain RuntimeError
        assert issubclass(kind, optireduce.RankLostError), found
        assert issubclass(kind, dist.DistBackendError), found
        assert ranks == (VICTIM,)


def waits_for_the_dead(
    rank: int, size: int, directory: str, how: signal.Signals, collective: Callable[[int], None]
) -> None:
    with process_group("optireduce", rank, size, directory, timeout=1_000.0, config=SHORT):
        dist.barrier()
        if rank == VICTIM:
            (Path(directory) / "victim").write_text(str(os.getpid()))
            os.kill(os.getpid(), how)
        check_lost(error_of(collective, rank), in_future=collective is future)
        for later in (barrier, sum_in_the_engine):
            check_lost(error_of(later, rank))
        (Path(directory) / f"done-{rank}").touch()


def end_the_victim(directory: Path, in_time: threading.Event) -> None:
    """It was only stopped, and the pool wants it dead, but not before the others have noticed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and not in_time.is_set():
        time.sleep(0.05)
        if all((directory / f"done-{rank}").exists() for rank in range(RANKS) if rank != VICTIM):
            in_time.set()
    os.kill(int((directory / "victim").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_stopped_rank_ends_what_waits_for_it(
    process_pool: ProcessPool, tmp_path: Path, collective: Callable[[int], None]
) -> None:
    in_time = threading.Event()
    ending = threading.Thread(target=end_the_victim, args=(tmp_path, in_time))
    ending.start()
    process_pool.run(RANKS, waits_for_the_dead, str(tmp_path), signal.SIGSTOP, collective, dying=[VICTIM])
    ending.join()
    assert in_time.is_set()


@pytest.mark.parametrize("collective", [barrier, broadcast_from_the_victim])
def test_a_killed_rank_is_named(
    process_pool: ProcessPool, tmp_path: Path, collective: Callable[[int], None]
) -> None:
    process_pool.run(RANKS, waits_for_the_dead, str(tmp_path), signal.SIGKILL, collective, dying=[VICTIM])


def waits_for_one_that_left(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory, timeout=1_000.0, config=SHORT):
        dist.barrier()
        if rank == VICTIM:
            return
        kind, text, ranks = error_of(barrier, rank)
        assert issubclass(kind, optireduce.PeerLeftError), (kind, text)
        assert VICTIM in ranks


def test_a_rank_that_left_is_named(on_ranks: Callable[..., list[Any]]) -> None:
    on_ranks(RANKS, waits_for_one_that_left)


def waits_for_a_late_one(rank: int, size: int, directory: str) -> None:
    config = replace(SHORT, exact_silence_seconds=1.0)
    with process_group("optireduce", rank, size, directory, timeout=1_000.0, config=config):
        for collective in (barrier, broadcast_from_the_victim):
            if rank == VICTIM:
                time.sleep(4.0)
            collective(rank)
        if rank == VICTIM:
            time.sleep(2.0)
        work = dist.barrier(async_op=True)
        if rank != VICTIM:  # the caller's own limit ends nothing
            with pytest.raises(RuntimeError, match="timed out"):
                work.wait(timedelta(milliseconds=1))
        work.wait()


def test_a_late_rank_is_waited_for(on_ranks: Callable[..., list[Any]]) -> None:
    on_ranks(RANKS, waits_for_a_late_one)
