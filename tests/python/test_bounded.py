"""Operations with a deadline between real processes: ranks are killed and stopped, packets are lost, and the
others go on with what they have, know what they lack, and never hang."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import LOOPBACK, ProcessPool, free_port, group_results
from test_communicator import contribution as random_contribution
from test_communicator import rank_order

import optireduce
from optireduce import Communicator, Config, MembershipEvent, Report
from optireduce.trials.soak.values import contribution, contributors, count

RANKS = 4
VICTIM = RANKS - 1
ELEMENTS = 256 * 1024  # a mebibyte
SURVIVORS = [rank for rank in range(RANKS) if rank != VICTIM]
CONFIG = replace(LOOPBACK, warmup_operations=5)


class LogLines(logging.Handler):
    """What the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("optireduce").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- A rank that is killed -------------------------------------------------------------------------------


def loop_with_a_death(rank: int, size: int, store: str, config: Config) -> tuple[Any, ...]:
    """The victim dies in the middle of operation 20; the others do 40."""
    log = LogLines()
    events: list[MembershipEvent] = []
    reports: list[Report] = []
    with Communicator(rank, size, store, config) as communicator:
        communicator.on_membership(events.append)
        for number in range(40):
            values = contribution(rank, ELEMENTS)
            handle = communicator.all_reduce_async(values)
            if (rank, number) == (VICTIM, 20):
                die()
            reports.append(handle.wait())
    return events, reports, log.lines, values


def test_the_others_go_on_without_a_rank_that_is_killed(process_pool: ProcessPool) -> None:
    store = f"127.0.0.1:{free_port()}"
    found = process_pool.run(RANKS, loop_with_a_death, store, CONFIG, dying=[VICTIM])
    for rank in SURVIVORS:
        events, reports, lines, values = found[rank]
        assert [(event.kind, event.rank) for event in events] == [("absent", VICTIM)]
        assert sum(f"rank {VICTIM} has not contributed" in line for line in lines) == 1
        assert len(reports) == 40
        assert not any(report.bounded for report in reports[: CONFIG.warmup_operations])
        last = reports[-1]
        assert last.absent == (VICTIM,)
        assert set(np.unique(contributors(values, RANKS))) <= {0, 0b0111}
        assert np.count_nonzero(values == 0) * values.itemsize == last.reduced_lost_bytes
        assert last.reduced_lost_bytes >= last.bytes // RANKS  # the victim's shard


def loop_until_too_few(rank: int, size: int, store: str) -> tuple[type[BaseException], tuple[int, ...], str]:
    config = replace(CONFIG, min_ranks=RANKS, quorum_seconds=0.2)
    communicator = Communicator(rank, size, store, config)
    try:
        for number in range(100):
            if (rank, number) == (VICTIM, 10):
                die()
            communicator.all_reduce(contribution(rank, ELEMENTS))
    except optireduce.OptiReduceError as error:
        return type(error), getattr(error, "ranks", ()), str(error)
    finally:
        communicator.close()
    raise AssertionError("100 operations with too few ranks")


def test_fewer_than_min_ranks_raise_on_the_others(process_pool: ProcessPool) -> None:
    store = f"127.0.0.1:{free_port()}"
    for rank, found in enumerate(process_pool.run(RANKS, loop_until_too_few, store, dying=[VICTIM])):
        if rank == VICTIM:
            continue
        kind, ranks, text = found
        assert kind is optireduce.TooFewRanksError, (rank, text)
        assert VICTIM in ranks
        assert f"min_ranks is {RANKS}; waited 2" in text  # 200 ms, or a little more


# --- A rank that is stopped ------------------------------------------------------------------------------


class Board:
    """A file in which the ranks tell each other how far they are, beside the network that is tested."""

    PROCESS, ABSENT, BACK, CLEAN, LAST = range(5)

    def __init__(self, directory: str) -> None:
        path = Path(directory) / "board"
        self._cells = np.memmap(path, np.int64, "r+" if path.exists() else "w+", shape=(5, RANKS))

    def set(self, what: int, rank: int, value: int) -> None:
        self._cells[what, rank] = value

    def get(self, what: int, rank: int) -> int:
        return int(self._cells[what, rank])

    def least(self, what: int, ranks: list[int]) -> int:
        return min(self.get(what, rank) for rank in ranks)


def loop_with_a_pause(rank: int, size: int, directory: str, store: str) -> list[MembershipEvent]:
    """The victim stops itself in operation 20. Rank 0 lets it run on when all others have given it up, and
    sets an end when nobody has lost anything for ten operations since it is back."""
    board = Board(directory)
    board.set(Board.PROCESS, rank, os.getpid())
    events: list[MembershipEvent] = []

    def note(event: MembershipEvent) -> None:
        events.append(event)
        board.set(Board.ABSENT if event.kind == "absent" else Board.BACK, rank, event.operation + 1)

    resumed = False
    number = 0
    with Communicator(rank, size, store, CONFIG) as communicator:
        communicator.on_membership(note)
        while number <= (board.get(Board.LAST, 0) or number):
            handle = communicator.all_reduce_async(contribution(rank, ELEMENTS))
            if (rank, number) == (VICTIM, 20):
                os.kill(os.getpid(), signal.SIGSTOP)
            report = handle.wait()
            whole = report.lost_bytes == 0 and not report.absent
            board.set(Board.CLEAN, rank, board.get(Board.CLEAN, rank) + 1 if whole else 0)
            if rank == 0 and not resumed and board.least(Board.ABSENT, SURVIVORS):
                os.kill(board.get(Board.PROCESS, VICTIM), signal.SIGCONT)
                resumed = True
            if rank == 0 and resumed and not board.get(Board.LAST, 0) and all_are_well(board):
                board.set(Board.LAST, 0, number + 50)  # nobody is so far ahead
            number += 1
    return events


def all_are_well(board: Board) -> bool:
    return board.least(Board.BACK, SURVIVORS) > 0 and board.least(Board.CLEAN, list(range(RANKS))) >= 10


def test_a_stopped_rank_is_given_up_and_waited_for_again(process_pool: ProcessPool, tmp_path: Path) -> None:
    Board(str(tmp_path))
    store = f"127.0.0.1:{free_port()}"
    found = process_pool.run(RANKS, loop_with_a_pause, str(tmp_path), store)
    for rank in SURVIVORS:
        changes = [event.kind for event in found[rank] if event.rank == VICTIM]
        assert changes[:2] == ["absent", "back"]
        assert changes[-1] == "back"


# --- Training --------------------------------------------------------------------------------------------


def train_with_a_death(rank: int, size: int, directory: str, backend: str) -> tuple[Any, ...]:
    """The victim dies in the backward pass of step 15, with some of its gradients sent; the others do 30, and
    with a session make their replicas equal then."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch_ranks import process_group

    config = replace(CONFIG, bounded_min_bytes=0, warmup_steps=0)  # every bucket
    with process_group(backend, rank, size, directory, timeout=30.0, config=config):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(256, 256) for _ in range(3)]  # no buffers, which would be broadcast
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
        session = optireduce.attach(model, config) if backend == "gloo" else None
        events: list[MembershipEvent] = []
        (session or optireduce).on_membership(events.append)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(30):
            if (rank, step) == (VICTIM, 15):
                layers[0].weight.register_hook(lambda gradient: die())
            data = torch.randn(16, 256, generator=torch.Generator().manual_seed(rank))
            loss = (model(data) - data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        changes = [f"{event.kind} {event.rank}" for event in events]
        if session is None:
            return losses, changes, None
        all_came = session.synchronize()
        parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        session.close()
    return losses, changes, (session.last_step, all_came, parameters.numpy())


@pytest.mark.parametrize("backend", ["gloo", "optireduce"])
def test_training_goes_on_without_a_rank_that_is_killed(
    process_pool: ProcessPool, tmp_path: Path, backend: str
) -> None:
    """Through attach() on Gloo, and as the backend."""
    found = process_pool.run(RANKS, train_with_a_death, str(tmp_path), backend, dying=[VICTIM])
    for rank in SURVIVORS:
        losses, changes, at_the_end = found[rank]
        assert changes[-1] == f"absent {VICTIM}"  # on a loaded machine it may have been late before
        assert len(losses) == 30
        assert losses[-1] < losses[14] < losses[0]
        if at_the_end is not None:
            last_step, all_came, parameters = at_the_end
            assert last_step.step == 29
            assert last_step.absent == (VICTIM,)
            assert not all_came
            others = found[SURVIVORS[0]][2][2]
            assert np.mean(parameters == others) > 0.7  # all but the victim's part, where they may differ


# --- Lost packets ----------------------------------------------------------------------------------------


def test_what_must_be_exact_is_exact_under_loss() -> None:
    config = replace(CONFIG, drop=0.05, impairment_seed=5, mtu=1500, linger_seconds=4.0)
    lengths = [100_003, 1_000, 16_383]  # the first only because we say so

    def body(communicator: Communicator) -> list[bytes]:
        for _ in range(8):
            communicator.all_reduce(np.ones(50_000, np.float32))
        found = []
        for length in lengths:
            array = random_contribution(communicator.rank, length, np.float32)
            with optireduce.exact() if length == lengths[0] else nullcontext():
                report = communicator.all_reduce(array, "sum")
            assert not report.bounded
            found.append(array.tobytes())
        return found

    expected = [rank_order(3, length, np.float32, "sum").tobytes() for length in lengths]
    assert group_results(3, body, config) == [expected] * 3


def test_without_repair_what_is_lost_is_told() -> None:
    """Both stages: zeros where the report says so, and means of as many as it says."""
    config = replace(CONFIG, repair=False, drop=0.02, impairment_seed=5, mtu=1500)

    def body(communicator: Communicator) -> list[tuple[Report, Any]]:
        found = []
        for _ in range(25):
            values = contribution(communicator.rank, ELEMENTS)
            found.append((communicator.all_reduce(values), values))
        return found

    shares = []
    for outcomes in group_results(RANKS, body, config):
        for report, values in outcomes:
            contributed = count(contributors(values, RANKS))
            arrived = contributed[contributed > 0]
            assert (values.size - arrived.size) * values.itemsize == report.reduced_lost_bytes
            missing_bytes = int((RANKS - arrived).sum()) * values.itemsize
            assert report.contributions_lost_bytes == -(-missing_bytes // RANKS)
            assert report.repaired_bytes == 0 or not report.bounded
            shares.append(report.loss_share)
            assert report.bounded or report.loss_share == 0
    assert 0 < np.mean(shares) < 0.2
