"""A Budget whose average has a deadline: nobody waits for a late rank, and each sample is in one mean."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_engine import fake_session
from ranks import LIMIT_SECONDS, LOOPBACK, ProcessPool
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce import Budget, Config

RANKS, LATE = 3, 2
STEPS = 26
LATE_STEPS = (21, 25)  # owners know what is usual by then; the last one's samples are left for a flush
CONTRIBUTIONS = RANKS * STEPS
VALUES = CONTRIBUTIONS * 600


def samples(rank: int, step: int) -> int:
    return (rank + 2 * step) % 4 + (step in LATE_STEPS)


def gradient(rank: int, step: int) -> torch.Tensor:
    """A sum over samples in which every contribution has values of its own."""
    values = torch.zeros(VALUES)
    values[rank * STEPS + step :: CONTRIBUTIONS] = samples(rank, step)
    return values


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(VALUES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.sum()


def others_are_done(directory: str, step: int, ranks: list[int]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not all((Path(directory) / f"done-{step}-{rank}").exists() for rank in ranks):
        assert time.monotonic() < limit, f"the others wait for rank {LATE}"
        time.sleep(0.01)


def steps(budget: Budget, weight: Any, rank: int, directory: str) -> tuple[list[torch.Tensor], list[Any]]:
    means, reports = [], []
    for step in range(STEPS):
        if step == LATE_STEPS[0]:  # what a busy machine has left by then goes first
            budget.flush()
            means.append(weight.grad.clone())
        for _ in budget.micro_batches(range(samples(rank, step))):
            pass
        weight.grad = gradient(rank, step)
        if step in LATE_STEPS and rank == LATE:
            others_are_done(directory, step, [other for other in range(RANKS) if other != LATE])
        reports.append(budget.average([weight]))
        (Path(directory) / f"done-{step}-{rank}").touch()
        if step in LATE_STEPS:  # the next one begins together
            others_are_done(directory, step, list(range(RANKS)))
        means.append(torch.zeros(VALUES) if weight.grad is None else weight.grad.clone())
    return means, reports


def checked(means: list[torch.Tensor], reports: list[Any]) -> tuple[str, list[Any]]:
    """Every contribution with samples is in exactly one mean, and weighs there what it holds."""
    times = sum((mean != 0).int() for mean in means)
    wanted = sum((gradient(rank, step) != 0).int() for rank in range(RANKS) for step in range(STEPS))
    assert torch.equal(times, wanted)
    sizes = sum(gradient(rank, step) for rank in range(RANKS) for step in range(STEPS))
    for mean in means:
        one = slice(CONTRIBUTIONS, 2 * CONTRIBUTIONS)  # of one packet
        weights = torch.where(mean[one] != 0, sizes[one], 0.0)
        torch.testing.assert_close(mean[one], weights / weights.sum().clamp(min=1))
    digest = hashlib.sha256(b"".join(mean.numpy().tobytes() for mean in means)).hexdigest()
    return digest, [(reports[step].excluded.get(LATE), reports[step].bytes) for step in LATE_STEPS]


def train(rank: int, size: int, directory: str) -> tuple[str, list[Any]]:
    config = replace(LOOPBACK, linger_seconds=30.0)
    with process_group("gloo", rank, size, directory):
        model = DistributedDataParallel(Model())
        with optireduce.attach(model, config) as session:
            budget = Budget(session, micro_batches=10)
            means, reports = steps(budget, model.module.weight, rank, directory)
            assert session.flush()
            means.append(model.module.weight.grad.clone())
            assert not session.flush()
            assert not bool(model.module.weight.grad.any())
            return checked(means, reports)


def average_on_the_backend(rank: int, size: int, directory: str) -> tuple[str, list[Any]]:
    config = replace(LOOPBACK, linger_seconds=30.0, bounded="all")
    with process_group("optireduce", rank, size, directory, config=config) as group:
        weight = nn.Parameter(torch.zeros(VALUES))
        budget = Budget(group, micro_batches=10)
        means, reports = steps(budget, weight, rank, directory)
        assert budget.flush()
        assert weight.grad is not None
        means.append(weight.grad.clone())
        return checked(means, reports)


@pytest.mark.parametrize("loop", [train, average_on_the_backend])
def test_nobody_waits_for_a_late_rank_and_each_sample_counts_once(
    loop: Any, process_pool: ProcessPool, tmp_path: Path
) -> None:
    found = process_pool.run(RANKS, loop, str(tmp_path))
    assert len({digest for digest, _ in found}) == 1
    for _, late in found:
        for excluded, everything in late:
            assert excluded == everything


# --- What the engine hears -------------------------------------------------------------------------------


class Scaler:
    scale = 4.0

    def get_scale(self) -> float:
        return self.scale

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def average_once(budget: Budget, *weights: Any) -> None:
    list(budget.micro_batches(range(3)))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    budget.average(weights)


@pytest.mark.parametrize("bounded", [True, False])
def test_in_a_session_averages_are_bounded_as_gradients_are(
    bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_session(monkeypatch, Config(interface="lo", bounded=bounded)) as (model, session, engine):
        session.keep(Scaler())
        budget = Budget(session)
        for _ in range(2):
            average_once(budget, model.module.weight)
        session.flush()
    told = [(call.bounded, call.weight, call.stream != 0, call.step, call.scale) for call in engine.calls]
    exact = (False, 0, bounded, 2 if bounded else 0, 1.0)
    assert told == [(bounded, 3, bounded, int(bounded and n), 4.0) for n in range(2)] + [exact]
    assert len({call.stream for call in engine.calls}) == 1


def test_budgets_and_sets_of_parameters_have_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        one, other = Budget(session), Budget(session)
        weight, bias = model.module.weight, model.module.bias
        for budget, weights in [(one, [weight]), (one, [weight, bias]), (other, [weight]), (one, [weight])]:
            average_once(budget, *weights)
        streams = [call.stream for call in engine.calls]
        assert len(set(streams)) == 3
        assert streams[0] == streams[3]
        session.flush()
        assert [call.stream for call in engine.calls[4:]] == streams[:3]


def test_other_parameters_of_the_same_sizes_need_a_budget_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_session(monkeypatch) as (_, session, _):
        budget = Budget(session)
        weight = nn.Parameter(torch.zeros(8))
        average_once(budget, weight)
        with pytest.raises(ValueError, match=r"parameter 0 is another one.*one Budget for each model"):
            average_once(budget, nn.Parameter(torch.zeros(8)))
        del weight  # a program that makes its parameters anew
        average_once(budget, nn.Parameter(torch.zeros(8)))


def test_a_gradient_whose_flag_is_late_is_given_all_the_same() -> None:
    from optireduce.gradient_buckets import GradientBuckets

    used, unused = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    buckets = GradientBuckets([used, unused], notes=2)
    used.grad = torch.tensor([0.0, 2.0, 0.0])
    buckets.fill([0.0, 0.0])
    next(buckets.buffers())[:4] = 0.0  # the notes and flags of this step came too late
    used.grad = None
    buckets.copy_back()
    assert used.grad is not None
    assert np.array_equal(used.grad.numpy(), [0.0, 2.0, 0.0])
    assert unused.grad is None
