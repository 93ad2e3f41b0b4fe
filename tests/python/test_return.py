"""A rank that missed more than the others keep returns by a snapshot, between real processes. The others go
on meanwhile, and afterwards all ranks have the same bits."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ranks import LIMIT_SECONDS, LOOPBACK, ProcessPool
from test_training_loops import both
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce import GroupFinished, LeftBehind

RANKS, WIDTH = 4, 64
VICTIM, WAKER = RANKS - 1, 0
EVERYBODY = list(range(RANKS))
STOPS_AT, WAKES_AT = 12, 40
MOST_STEPS = 4_000
# Less than the decisions of a step: whatever a rank misses is gone.
SHORT = replace(LOOPBACK, log_bytes=65_536, linger_seconds=5.0)


class Training:
    """The loop of one rank. The victim stops until another rank has gone far ahead."""

    def __init__(self, rank: int, directory: str, config: optireduce.Config = SHORT, **options: Any) -> None:
        self.rank = rank
        self.directory = Path(directory)
        torch.manual_seed(3)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1_000)
        self.session = optireduce.attach(self.model, config, **{"optimizer": self.optimizer, **options})
        self.session.keep(self.scheduler)
        self.events: list[str] = []
        self.session.on_membership(self._note)
        self.woke = False
        self.replayed = 0

    def _note(self, event: optireduce.MembershipEvent) -> None:
        if event.rank == VICTIM:
            self.events.append(event.kind)

    def is_whole(self, members: list[int] = EVERYBODY) -> bool:
        """All members have the same answer in the same step. A rank that is left behind has an old report."""
        last = self.session.last_step
        return last is not None and last.step == self.session.step - 1 and list(last.members) == members

    def step(self) -> None:
        if self.session._transport.engine.behind() is None:
            time.sleep(0.005)  # what a larger model would compute
        else:
            self.replayed += 1
        torch.manual_seed(self.session.step * RANKS + self.rank)
        self.optimizer.zero_grad()
        self.model(torch.randn(8, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def stop(self) -> None:
        """Until the waker has gone far ahead."""
        (self.directory / "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)

    def wake(self) -> None:
        """The victim's process, which must be there already."""
        self.woke = True
        limit = time.monotonic() + LIMIT_SECONDS
        while not (self.directory / "stopped").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        os.kill(int((self.directory / "stopped").read_text()), signal.SIGCONT)

    def run(self, last: int = MOST_STEPS, members: list[int] = EVERYBODY) -> None:
        """Until everybody is a member again."""
        while self.session.step < last and (self.session.step <= WAKES_AT or not self.is_whole(members)):
            if (self.rank, self.session.step) == (VICTIM, STOPS_AT):
                self.stop()
            self.step()
            if self.rank == WAKER and self.session.step >= WAKES_AT and not self.woke:
                self.wake()

    def result(self) -> dict[str, Any]:
        """After the loop."""
        found = {
            "step": self.session.step,
            "events": self.events,
            "bits": both(self.model, self.optimizer),
            "scheduler": self.scheduler.state_dict(),
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "stats": self.session.stats(),
            "replayed": self.replayed,
        }
        self.session.close()
        return found


def returns(rank: int, size: int, directory: str) -> dict[str, Any]:
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory)
        training.run()
        training.session.flush(training.optimizer)
        return training.result()


def test_a_rank_that_missed_too_much_returns_by_a_snapshot(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, returns, str(tmp_path))
    for rank, result in enumerate(found):
        assert WAKES_AT < result["step"] == found[0]["step"] < MOST_STEPS, rank
        assert result["bits"] == found[0]["bits"], rank
        assert result["scheduler"] == found[0]["scheduler"], rank
        assert result["rates"] == found[0]["rates"], rank
        assert "returned" in result["events"], rank
    assert "left behind" in found[VICTIM]["events"]
    assert found[VICTIM]["stats"]["snapshots_applied"] >= 1
    assert found[VICTIM]["stats"]["discarded_steps"] >= 1
    donors = [found[rank]["stats"] for rank in EVERYBODY if rank != VICTIM]
    assert all(stats["snapshots_given"] >= 1 and stats["discarded_steps"] == 0 for stats in donors)
    assert all(result["stats"]["snapshot_refused_connections"] == 0 for result in found)


LONG = replace(SHORT, log_bytes=256 * 2**20)


def returns_from_afar(rank: int, size: int, directory: str) -> dict[str, Any]:
    """The others keep all that the victim missed."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory, LONG)
        training.run()
        training.session.flush(training.optimizer)
        return training.result()


def test_a_rank_far_behind_takes_a_snapshot_although_it_could_replay(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, returns_from_afar, str(tmp_path))
    for rank, result in enumerate(found):
        assert WAKES_AT < result["step"] == found[0]["step"] < MOST_STEPS, rank
        assert result["bits"] == found[0]["bits"], rank
        assert result["scheduler"] == found[0]["scheduler"], rank
        assert "returned" in result["events"], rank
    victim = found[VICTIM]["stats"]
    assert victim["snapshots_applied"] >= 1
    assert victim["discarded_steps"] == 0  # what it did before was replayed


def replays(rank: int, size: int, directory: str) -> dict[str, Any]:
    """No snapshot is possible. The victim computes less while it is behind."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory, LONG, optimizer=None)
        training.run()
        return training.result()


def test_a_rank_replays_outside_the_view_and_joins_when_it_is_near(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, replays, str(tmp_path))
    for rank, result in enumerate(found):
        assert WAKES_AT < result["step"] == found[0]["step"] < MOST_STEPS, rank
        assert result["bits"] == found[0]["bits"], rank
        assert result["events"][:2] == ["removed", "returned"], rank
    victim = found[VICTIM]["stats"]
    assert (victim["snapshots_applied"], victim["discarded_steps"]) == (0, 0)
    assert found[VICTIM]["replayed"] > 10  # far more than max_lag, and all of them outside the view


WRONG = 3  # snapshots; already the second asks for a pause, so that it is not too old


def returns_after_a_refusal(rank: int, size: int, directory: str) -> dict[str, Any]:
    """The first snapshots claim another history than the members have."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory)
        transport = training.session._transport
        restore = transport.restore

        wrong_ones = iter(range(WRONG))

        def wrong(completed: int, digest: int, step: int) -> None:
            restore(completed, digest ^ (next(wrong_ones, None) is not None), step)

        transport.restore = wrong  # type: ignore[method-assign]
        training.run()
        training.session.flush(training.optimizer)
        return training.result()


def test_members_refuse_a_snapshot_of_another_history(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, returns_after_a_refusal, str(tmp_path))
    assert found[VICTIM]["events"].count("left behind") > WRONG
    assert found[VICTIM]["stats"]["snapshots_applied"] > WRONG
    for result in found:
        assert result["step"] == found[0]["step"]
        assert result["bits"] == found[0]["bits"]


DYING = 1


def returns_without_a_donor(rank: int, size: int, directory: str) -> dict[str, Any]:
    """A donor is killed when the first byte of its part is asked for."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory, replace(SHORT, min_ranks=2))
        if rank == DYING:
            donor = training.session._rejoin._donor
            donor.piece = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        rest = [other for other in EVERYBODY if other != DYING]
        training.run(members=rest)
        training.session.flush(training.optimizer)
        return training.result()


def test_a_donor_that_dies_in_the_middle_is_done_without(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, returns_without_a_donor, str(tmp_path), dying=[DYING])
    rest = [result for result in found if result is not None]
    assert len(rest) == RANKS - 1
    for result in rest:
        assert result["step"] == rest[0]["step"]
        assert result["bits"] == rest[0]["bits"]
    assert found[VICTIM]["stats"]["snapshots_applied"] >= 1


def comes_too_late(rank: int, size: int, directory: str) -> tuple[str, str]:
    """The victim wakes up when all others have left."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        config = replace(SHORT, quorum_seconds=2.0, linger_seconds=0.5)
        training = Training(rank, directory, config)
        outcome = ("", "")
        try:
            while training.session.step < WAKES_AT:
                if (rank, training.session.step) == (VICTIM, STOPS_AT):
                    training.stop()
                training.step()
        except RuntimeError as error:
            # From the engine through torch, or of the snapshot itself.
            outcome = (type(training.session.error or error).__name__, str(error))
        training.session.close()
        (Path(directory) / f"left-{rank}").touch()
        if rank == WAKER:
            limit = time.monotonic() + LIMIT_SECONDS
            others = [other for other in EVERYBODY if other != VICTIM]
            while not all((Path(directory) / f"left-{other}").exists() for other in others):
                assert time.monotonic() < limit
                time.sleep(0.01)
            training.wake()
        return outcome


def test_a_rank_that_comes_when_all_others_have_finished_is_told(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, comes_too_late, str(tmp_path))
    assert found[:VICTIM] == [("", "")] * VICTIM
    assert found[VICTIM][0] == GroupFinished.__name__
    assert "all other ranks have finished" in found[VICTIM][1]


def has_no_donors(rank: int, size: int, directory: str) -> tuple[str, str]:
    """Only the victim gave attach() its optimizer."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        training = Training(rank, directory, **({} if rank == VICTIM else {"optimizer": None}))
        last = WAKES_AT + 40
        try:
            training.run(last)
            outcome = ("", "")
        except RuntimeError as error:
            outcome = (type(training.session.error).__name__, str(error))
        training.session.close()
        return outcome


def test_a_rank_is_left_behind_where_nobody_can_give_a_snapshot(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, has_no_donors, str(tmp_path))
    assert found[VICTIM][0] == LeftBehind.__name__
    assert "Give attach() the optimizer on every rank" in found[VICTIM][1]
    assert found[:VICTIM] == [("", "")] * VICTIM
