"""A model that nobody uses any more takes along what attach() made for it: memory, thread and sockets."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce

OnRanks = Callable[..., list[Any]]
WIDTH = 64


def trained(with_optimizer: bool, close: bool) -> list[weakref.ref[Any]]:
    """What would stay if something held on to it."""
    layers = [nn.Linear(WIDTH, WIDTH)] if with_optimizer else [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = optireduce.attach(model, CONFIG, optimizer=optimizer if with_optimizer else None)
    if with_optimizer:
        assert session._rejoin._service is not None  # a socket and a thread
        session.keep(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    for _ in range(3):
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.flush()
    if close:
        session.close()
    return [weakref.ref(held) for held in (model, model.module[0].weight, optimizer, session)]


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def forgotten(rank: int, size: int, directory: str, with_optimizer: bool, close: bool) -> tuple[Any, ...]:
    with process_group("gloo", rank, size, directory):
        trained(with_optimizer, close)  # torch has threads of its own from the first one on
        before = held()
        names = trained(with_optimizer, close)
        limit = time.monotonic() + 60  # the thread that completes futures lets go a moment later
        while (held() > before or any(name() for name in names)) and time.monotonic() < limit:
            time.sleep(0.01)
        return before, held(), [name() is not None for name in names]


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_a_model_that_is_forgotten_leaves_nothing_behind(
    on_ranks: OnRanks, with_optimizer: bool, close: bool
) -> None:
    for before, after, alive in on_ranks(2, forgotten, with_optimizer, close):
        assert not any(alive)
        assert after <= before


def outlives_its_model(rank: int, size: int, directory: str) -> str:
    with process_group("gloo", rank, size, directory):
        session = optireduce.attach(DistributedDataParallel(nn.Linear(WIDTH, WIDTH)), CONFIG)
        with pytest.raises(optireduce.ClosedError) as raised:
            session.flush()
        session.close()
        return str(raised.value)


def test_a_session_without_its_model_says_so(on_ranks: OnRanks) -> None:
    for message in on_ranks(2, outlives_its_model):
        assert "the model of this session is gone" in message
