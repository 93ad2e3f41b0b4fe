"""Training must not notice the change: the same parameters as on Gloo, with every mode of DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce

OnRanks = Callable[..., list[Any]]
STEPS = 50
EXACT = replace(CONFIG, bounded=False)  # a deadline moves contributions to later steps


class Model(nn.Module):
    """Several buckets; the branch is not used in every step."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.branch = nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, data: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        hidden = self.stem(data)
        result: torch.Tensor = self.head(self.branch(hidden) if use_branch else hidden)
        return result


def train(
    rank: int,
    attach: bool,
    steps: int = STEPS,
    accumulate: int = 1,
    skip_branch: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Parameters after training, and the session if one was attached."""
    model = DistributedDataParallel(Model(seed=3), bucket_cap_mb=0.01, **options)
    session = optireduce.attach(model, EXACT) if attach else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        for micro in range(accumulate):
            data = torch.randn(8, 20, generator=generator)
            target = torch.randint(5, (8,), generator=generator)
            use_branch = not (skip_branch and step % 2)
            if micro < accumulate - 1:
                with model.no_sync():
                    nn.functional.cross_entropy(model(data, use_branch), target).backward()
            else:
                nn.functional.cross_entropy(model(data, use_branch), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        if session is not None:
            assert session.last_step is not None
            assert session.last_step.step == step
            assert session.last_step.excluded_share == 0.0
            assert session.last_step.bytes == 4 * sum(p.numel() for p in model.parameters())
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone(), session


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket_view": {"gradient_as_bucket_view": True, "steps": 10},
    "no_sync": {"accumulate": 3, "steps": 10},
    "unused": {"find_unused_parameters": True, "skip_branch": True, "steps": 10},
    "static_graph": {"static_graph": True, "steps": 10},
}
# DDP cuts these into small buckets only after the first step, which it cannot do here.
ONE_BUCKET = ("unused",)


def train_all(rank: int, size: int, directory: str, backend: str, attach: bool) -> dict[str, list[float]]:
    found = {}
    with process_group(backend, rank, size, directory, label=str(attach)):
        for name, options in VARIANTS.items():
            parameters, session = train(rank, attach, **options)
            found[name] = parameters.tolist()
            if session is not None:
                assert session.last_step.buckets > 1 or name in ONE_BUCKET
                assert session.stats()["operations"] >= options.get("steps", STEPS)
                session.close()
        if backend == "optireduce" and not attach:
            assert optireduce.stats()["operations"] > STEPS
        if attach and backend == "optireduce":
            assert optireduce.stats()["operations"] == 0  # the session has an engine of its own
    return found


@pytest.fixture(scope="module")
def reference(process_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Stock DDP on Gloo."""
    found = process_pool.run(2, train_all, str(tmp_path_factory.mktemp("gloo")), "gloo", False)
    assert found[0] == found[1]
    return {name: torch.tensor(values) for name, values in found[0].items()}


@pytest.mark.parametrize(("backend", "attach"), [("optireduce", False), ("gloo", True), ("optireduce", True)])
def test_same_parameters_as_gloo(
    on_ranks: OnRanks, reference: dict[str, torch.Tensor], backend: str, attach: bool
) -> None:
    first, second = on_ranks(2, train_all, backend, attach)
    for name, expected in reference.items():
        assert first[name] == second[name], name
        torch.testing.assert_close(torch.tensor(first[name]), expected, rtol=2e-5, atol=2e-6, msg=name)


def hooks(rank: int, size: int, directory: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    with process_group("optireduce", rank, size, directory):
        for _ in range(3):
            # One bucket: with more, PowerSGD starts operations from callbacks, in an order that differs
            # between ranks, which fails on plain Gloo too.
            model = DistributedDataParallel(Model(seed=1))
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            for _ in range(5):
                model(torch.randn(4, 20)).sum().backward()
        for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
            model = DistributedDataParallel(Model(seed=1), bucket_cap_mb=0.01)
            model.register_comm_hook(None, hook)
            model(torch.randn(4, 20)).sum().backward()
        half = DistributedDataParallel(Model(seed=1).to(torch.bfloat16))
        half(torch.randn(4, 20).to(torch.bfloat16)).sum().backward()
        model = DistributedDataParallel(Model(seed=1))
        with model.join():
            for _ in range(1 + rank):
                model(torch.randn(4, 20)).sum().backward()


def test_other_hooks_do_not_hang(on_ranks: OnRanks) -> None:
    on_ranks(2, hooks)


def many_models(rank: int, size: int, directory: str) -> None:
    """DDP's constructor, Gloo's workers and the GIL met in a deadlock here when methods fell through to
    C++."""
    with process_group("optireduce", rank, size, directory):
        for _ in range(60):
            model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
            model(torch.randn(2, 8)).sum().backward()


def test_many_models_do_not_deadlock(on_ranks: OnRanks) -> None:
    on_ranks(2, many_models)


def failing_training(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory):
        torch.manual_seed(0)
        models = [DistributedDataParallel(nn.Linear(4, 4)) for _ in range(3)]
        session = optireduce.attach(models[1], optireduce.Config(interface="lo", timeout_seconds=3.0))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        if rank == 0:
            for model in models[:2]:
                with pytest.raises(RuntimeError, match=r"OperationTimeout"):
                    model(torch.randn(2, 4)).sum().backward()
            assert session.last_step is None
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=120))
        dist.barrier()
        session.close()
        with pytest.raises(
            optireduce.ConnectError if rank == 0 else optireduce.InterfaceError, match="eth99"
        ):
            optireduce.attach(models[2], optireduce.Config(interface="eth99" if rank else "lo"))
        with pytest.raises(TypeError, match="Linear"):
            optireduce.attach(nn.Linear(2, 2))  # type: ignore[arg-type]
        optireduce.attach(models[2], CONFIG).close()
        with pytest.raises(optireduce.ClosedError, match="session is closed"):
            models[2](torch.randn(2, 4)).sum().backward()


def test_a_missing_rank_is_an_error_in_backward(on_ranks: OnRanks) -> None:
    on_ranks(2, failing_training)
