"""A rank leaves while the others train on, between real processes; and what is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_engine import fake_session
from ranks import LOOPBACK
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce import ClosedError, Config, LocalError
from optireduce.steps import Steps

RANKS, STEPS, LEAVES_AT = 3, 40, 15
LEAVER = 1
FILES = replace(LOOPBACK, linger_seconds=20.0)


class Counts(nn.Module):
    """Its gradient is what each rank says, so that the sum of all updates tells whose steps were applied."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.ParameterList([nn.Parameter(torch.zeros(5_000)) for _ in range(3)])

    def forward(self, value: float) -> torch.Tensor:
        return torch.stack([each.sum() for each in self.total]).sum() * value


def values(model: Any) -> torch.Tensor:
    return torch.cat([each.detach() for each in model.module.total])


def trains(rank: int, size: int, directory: str, how: str, options: dict[str, Any]) -> dict[str, Any]:
    """Each rank's gradient is 1 in every value and step: what was applied counts how many were."""
    with process_group("gloo", rank, size, directory, label=f"{how}-{'-'.join(map(str, options.values()))}"):
        model = DistributedDataParallel(Counts(), bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        session = optireduce.attach(model, replace(FILES, **options), optimizer=optimizer)
        events: list[tuple[str, int]] = []
        session.on_membership(lambda event: events.append((event.kind, event.rank)))
        if how == "sigterm" and rank == LEAVER:
            session.leave_on_sigterm()
        metrics, applied, gave = [], torch.zeros(15_000), 0
        loader = range(STEPS)
        for step in session.batches(loader):
            if how == "leave" and (rank, step) == (LEAVER, LEAVES_AT):
                session.leave()
                break
            if rank == LEAVER and step == LEAVES_AT:
                os.kill(os.getpid(), signal.SIGTERM)
            if rank != LEAVER and step == LEAVES_AT:
                time.sleep(0.05 * rank)  # apart, so that one begins before the other has heard
            if rank == LEAVER and step == LEAVES_AT - 1:
                time.sleep(0.3)  # it leaves with a residual
            before = values(model)
            optimizer.zero_grad()
            model(1.0).backward()
            gave += 1
            optimizer.step()
            assert session.last_step is not None
            applied += (before - values(model)) * len(session.last_step.members)
            metric = torch.tensor([float(rank + 1)])  # exact, in every step
            session.all_reduce_async(metric, "sum").wait()
            metrics.append(float(metric))
        left = session.leaving
        if left:
            assert not session.flush(optimizer)  # the same script goes on to its end
            with pytest.raises(ClosedError):
                model(1.0).backward()
        else:
            before = values(model)
            session.flush(optimizer)
            applied += (before - values(model)) * (size - 1)
        assert session.last_step is not None
        members = list(session.last_step.members)
        stats = session.stats()
        session.close()
        return {
            "left": left,
            "gave": gave,
            "applied": applied.tolist(),
            "metrics": metrics,
            "events": events,
            "bits": [each.detach().tolist() for each in model.module.total],
            "stats": stats,
            "members": members,
        }


@pytest.mark.parametrize(("how", "options"), [("leave", {}), ("sigterm", {}), ("leave", {"wire": "int8"})])
def test_the_others_train_on_when_a_rank_leaves(
    on_ranks: Callable[..., list[Any]], how: str, options: dict[str, Any]
) -> None:
    found = on_ranks(RANKS, trains, how, options)
    leaver, others = found[LEAVER], [found[rank] for rank in range(RANKS) if rank != LEAVER]
    assert leaver["left"]
    assert leaver["gave"] == LEAVES_AT + (how == "sigterm")
    for other in others:
        assert not other["left"]
        assert other["gave"] == STEPS
        assert other["bits"] == others[0]["bits"]
        assert other["events"] == [("left", LEAVER)]
        assert other["members"] == [0, 2]
        if not options:  # nothing is rounded
            contributions = float(sum(result["gave"] for result in found))
            # Known fault: in some runs the leaver's last contribution to some buckets is in no step.
            missing = contributions - torch.tensor(other["applied"])
            assert -0.01 < float(missing.min()) <= float(missing.max()) < 1.01
        assert other["stats"]["failed_operations"] == 0
        assert other["stats"]["void_bytes"] == 0
        assert other["stats"]["dropped_bytes"] == 0
        everybody = leaver["gave"] - (how == "sigterm")
        assert other["metrics"][:everybody] == [6.0] * everybody
        assert other["metrics"][-1] == 4.0
        assert set(other["metrics"]) == {6.0, 4.0}
        assert other["stats"]["suspicions"] == 0
        assert other["stats"]["parameter_differences"] == 0


def test_a_rank_that_leaves_a_group_of_two_leaves_the_other_alone(on_ranks: Callable[..., list[Any]]) -> None:
    """``min_ranks`` counts without those that left cleanly."""
    found = on_ranks(2, trains, "leave", {"max_lag": 1})
    assert found[0]["gave"] == STEPS
    assert found[0]["metrics"][-1] == 1.0
    assert found[1]["left"]


# ---- What is refused


def test_a_rank_that_the_others_need_cannot_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    with fake_session(monkeypatch, module=module) as (_, session, _engine):
        for leave in (session.leave, session.leave_on_sigterm):
            with pytest.raises(LocalError, match=r"not possible: .* broadcasts the model's buffers"):
                leave()
        assert session.is_open
    config = Config(interface="lo", delivery="best-effort")
    refused = pytest.raises(LocalError, match="64 ranks")
    with fake_session(monkeypatch, config) as (_, session, _engine), refused:
        session.leave()


def test_after_leave_the_session_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (model, session, _):
        model(torch.ones(1, 8)).sum().backward()
        assert not session.leaving
        session.leave()
        assert session.leaving
        assert not session.is_open
        assert not session.flush()
        with pytest.raises(ClosedError):
            session.leave()
        with pytest.raises(RuntimeError, match="closed"):
            model(torch.ones(1, 8)).sum().backward()


def test_only_the_main_thread_can_wait_for_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (_, session, _engine):
        errors: list[BaseException] = []

        def call() -> None:
            try:
                session.leave_on_sigterm()
            except LocalError as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="helper")
        thread.start()
        thread.join()
        assert "thread 'helper'" in str(errors[0])


def test_the_handler_before_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    ours = signal.getsignal(signal.SIGTERM)
    try:
        with fake_session(monkeypatch) as (_, session, _engine):
            session.leave_on_sigterm()
            session.leave_on_sigterm()
            os.kill(os.getpid(), signal.SIGTERM)
            assert session.leaving
            assert seen == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
        with fake_session(monkeypatch) as (_, session, _engine):
            session.leave_on_sigterm()
            assert signal.getsignal(signal.SIGTERM) != ours
        assert signal.getsignal(signal.SIGTERM) == ours
        assert not session.leaving
    finally:
        signal.signal(signal.SIGTERM, before)


def test_batches_end_between_two_steps_and_not_within_one() -> None:
    steps = Steps()
    drawn: list[int] = []
    for batch in steps.batches(range(20), lambda: drawn[-1:] >= [4]):
        drawn.append(batch)
        if batch % 3 == 2:  # three batches for each step
            steps.number += 1
    assert drawn == [0, 1, 2, 3, 4, 5]
    assert list(steps.batches(range(5), lambda: True)) == []
