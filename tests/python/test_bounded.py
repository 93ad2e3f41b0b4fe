"""Ranks that are killed or stopped, and packets that are lost, between real processes. Training goes on with
the same bits on all members; exact operations include every rank or fail on all of them; nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranks import LIMIT_SECONDS, LOOPBACK, ProcessPool, free_port, group_results
from test_communicator import contribution, rank_order
from test_training_loops import both
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce import Communicator, MembershipEvent, Report

RANKS, WIDTH = 4, 128
VICTIM = RANKS - 1
EVERYBODY = list(range(RANKS))
SURVIVORS = [rank for rank in range(RANKS) if rank != VICTIM]
ELEMENTS = 256 * 1024  # a mebibyte
# Long enough for a live rank on a busy machine, short enough to wait for a dead one.
CONFIG = replace(LOOPBACK, exact_silence_seconds=3.0)
MOST_STEPS = 3_000


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def meet(directory: str, rank: int, ranks: Sequence[int] = SURVIVORS) -> None:
    """Return when all of them are here."""
    (Path(directory) / f"here-{rank}").touch()
    limit = time.monotonic() + LIMIT_SECONDS
    while not all((Path(directory) / f"here-{other}").exists() for other in ranks):
        assert time.monotonic() < limit, "another rank did not come"
        time.sleep(0.01)


# --- Exact operations ------------------------------------------------------------------------------------


def loop_with_a_death(rank: int, size: int, store: str, directory: str) -> tuple[int, str, tuple[int, ...]]:
    """The victim dies in the middle of operation 10."""
    config = replace(CONFIG, timeout_seconds=1_000.0, linger_seconds=0.5)  # a dead rank is never through
    with Communicator(rank, size, store, config) as communicator:
        for number in range(20):
            handle = communicator.all_reduce_async(np.ones(ELEMENTS, np.float32))
            if (rank, number) == (VICTIM, 10):
                die()
            try:
                handle.wait()
            except optireduce.PeerError as error:
                meet(directory, rank)  # or the last one would find that others have left
                return number, type(error).__name__, error.ranks
    raise AssertionError("20 operations without a rank")


def test_a_communicator_says_which_rank_was_killed_long_before_its_timeout(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    store = f"127.0.0.1:{free_port()}"
    found = process_pool.run(RANKS, loop_with_a_death, store, str(tmp_path), dying=[VICTIM])
    numbers = {found[rank][0] for rank in SURVIVORS}
    assert len(numbers) == 1
    assert numbers <= {10, 11}  # its contribution to the tenth may have been complete
    for rank in SURVIVORS:
        assert found[rank][1:] == ("RankLostError", (VICTIM,))


def test_exact_operations_are_exact_under_loss() -> None:
    config = replace(CONFIG, drop=0.05, impairment_seed=5, mtu=1500)
    lengths = [100_003, 1_000, 16_383]

    def body(communicator: Communicator) -> list[bytes]:
        found = []
        for length in lengths:
            array = contribution(communicator.rank, length, np.float32)
            assert not communicator.all_reduce(array, "sum").bounded
            found.append(array.tobytes())
        return found

    expected = [rank_order(3, length, np.float32, "sum").tobytes() for length in lengths]
    assert group_results(3, body, config) == [expected] * 3


# --- Training --------------------------------------------------------------------------------------------


def training(
    config: optireduce.Config = CONFIG,
) -> tuple[Any, torch.optim.Optimizer, optireduce.Session, list[MembershipEvent]]:
    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]  # no buffers, which would be broadcast
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = optireduce.attach(model, config, optimizer=optimizer)
    assert not session.fixed_membership
    events: list[MembershipEvent] = []
    session.on_membership(events.append)
    return model, optimizer, session, events


def take_step(rank: int, model: Any, optimizer: torch.optim.Optimizer) -> float:
    data = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(rank))
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def members_of(session: optireduce.Session) -> list[int]:
    """Of the last step; the same on all ranks that made it."""
    return [] if session.last_step is None else list(session.last_step.members)


def train_with_a_death(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    """The victim dies in the backward pass of step 15, with some of its gradients sent. The others do 30. On
    a busy machine another one may be taken for dead too: all of them wait until it has returned."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        model, optimizer, session, events = training()
        losses: list[float] = []
        while len(losses) < MOST_STEPS and (len(losses) < 30 or members_of(session) != SURVIVORS):
            if rank == VICTIM and len(losses) >= 15 and members_of(session) == EVERYBODY:
                model.module[0].weight.register_hook(lambda gradient: die())
            losses.append(take_step(rank, model, optimizer))
        last = session.last_step
        session.close()
        return losses, events, last, both(model, optimizer)


def test_training_goes_on_without_a_rank_that_is_killed(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, train_with_a_death, str(tmp_path), dying=[VICTIM])
    for rank in SURVIVORS:
        losses, events, last, bits = found[rank]
        removals = [event for event in events if event.rank == VICTIM]
        assert removals[-1].kind == "removed"
        assert losses[-1] < losses[14] < losses[0]
        assert last.members == tuple(SURVIVORS)
        assert last.view >= removals[-1].view
        assert (last.step, last.view) == (len(losses) - 1, found[0][2].view)
        assert bits == found[0][3]


def exact_with_a_death(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    """The victim dies before an exact operation in the middle of training; the others do it again, as often
    as members change."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        model, optimizer, session, _ = training()
        for _ in range(10):
            take_step(rank, model, optimizer)
        meet(directory, rank, EVERYBODY)  # a rank that was taken for dead has returned
        if rank == VICTIM:
            die()
        lost: list[int] = []
        while True:
            metric = torch.ones(1000)
            try:
                report = session.all_reduce_async(metric, "sum").wait()
            except optireduce.RankLostError as error:
                lost += error.ranks
                continue
            assert lost, "an exact operation without a rank"
            if list(report.members) == SURVIVORS:
                break
        session.close()
        return lost, set(metric.tolist())


def test_an_exact_operation_fails_on_all_members_when_one_is_killed(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, exact_with_a_death, str(tmp_path), dying=[VICTIM])
    for rank in SURVIVORS:
        lost, sums = found[rank]
        assert VICTIM in lost
        assert lost == found[0][0]
        assert sums == {3.0}


def train_until_too_few(rank: int, size: int, directory: str) -> tuple[str, tuple[int, ...]]:
    with process_group("gloo", rank, size, directory, timeout=120.0):
        # A live rank that was taken for dead is back before the time is over.
        config = replace(CONFIG, min_ranks=RANKS, quorum_seconds=3.0, linger_seconds=0.5)
        model, optimizer, session, _ = training(config)
        for step in range(MOST_STEPS):
            if rank == VICTIM and step >= 10 and members_of(session) == EVERYBODY:
                die()
            try:
                take_step(rank, model, optimizer)
            except RuntimeError:
                error = session.error
                meet(directory, rank)  # or the last one would find that others have left
                session.close()
                assert error is not None
                return type(error).__name__, getattr(error, "ranks", ())
    raise AssertionError("every step with too few ranks")


def test_fewer_than_min_ranks_do_not_train_on(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, train_until_too_few, str(tmp_path), dying=[VICTIM])
    for rank in SURVIVORS:
        error, missing = found[rank]
        assert error == "TooFewRanksError"
        assert VICTIM in missing


WAKER = "import os, signal, sys, time; time.sleep(0.3); os.kill(int(sys.argv[1]), signal.SIGCONT)"


def train_with_a_pause(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    """The victim stops itself for 0.3 s, as a machine that stands still does. The others go on without it,
    until it is a member again."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        model, optimizer, session, events = training()
        step = 0
        while step < MOST_STEPS and (step < 60 or members_of(session) != EVERYBODY):
            time.sleep(0.02)  # what a larger model would compute
            take_step(rank, model, optimizer)
            if (rank, step) == (VICTIM, 20):
                with subprocess.Popen([sys.executable, "-c", WAKER, str(os.getpid())]):
                    os.kill(os.getpid(), signal.SIGSTOP)
            step += 1
        session.flush(optimizer)
        session.close()
        return events, step, both(model, optimizer)


def test_a_stopped_rank_is_a_member_again_with_the_same_bits(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, train_with_a_pause, str(tmp_path))
    for events, steps, bits in found:
        changes = [event.kind for event in events if event.rank == VICTIM]
        assert changes[::2] == ["removed"] * (len(changes) // 2)
        assert changes[1::2] == ["returned"] * (len(changes) // 2)
        assert steps == found[0][1] < MOST_STEPS
        assert bits == found[0][2]


# --- Best effort -----------------------------------------------------------------------------------------


def lossy_training(rank: int, size: int, directory: str, skip_above: float) -> tuple[Any, ...]:
    papers = replace(
        CONFIG,
        delivery="best-effort",
        warmup_operations=5,
        mtu=576,
        drop=0.1,
        impairment_seed=rank + 1,
        skip_above=skip_above,
        halt_after=1_000,
    )
    with process_group("gloo", rank, size, directory, timeout=120.0):
        model, optimizer, session, _ = training(papers)
        shares = []
        for _ in range(20):
            take_step(rank, model, optimizer)
            assert session.last_step is not None
            shares.append(session.last_step.loss_share)
        skipped = session.stats()["skipped_steps"]
        session.close()
        return shares, skipped, both(model, optimizer)["parameters"]


def test_best_effort_loses_what_is_lost_and_says_how_much(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(3, lossy_training, str(tmp_path), 1.0)
    for shares, skipped, _ in found:
        assert max(shares[-8:]) > 0.01
        assert skipped == 0
    assert len({parameters for *_, parameters in found}) > 1  # replicas drift apart


def test_best_effort_skips_steps_on_all_ranks_or_none(process_pool: ProcessPool, tmp_path: Path) -> None:
    """Each rank loses other packets, so ranks agree by an exchange."""
    found = process_pool.run(3, lossy_training, str(tmp_path), 0.05)
    assert len({skipped for _, skipped, _ in found}) == 1
    assert found[0][1] > 0


def test_reports_of_short_buffers_need_no_communication() -> None:
    def body(communicator: Communicator) -> Report:
        return communicator.all_reduce(np.zeros(0, np.float32))

    for report in group_results(2, body):
        assert (report.operation, report.excluded_share) == (-1, 0.0)
