"""The part of the parameters that is sent again travels as soon as it is final: when a forward pass
begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce

OnRanks = Callable[..., list[Any]]
WIDTH = 64
ROUND = 5
QUIET = replace(CONFIG, warmup_operations=3, warmup_steps=0, resync_steps=ROUND)


def trainer(learning_rate: float = 0.05) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    return model, optimizer, optireduce.attach(model, QUIET, optimizer=optimizer)


def data(rank: int, number: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * rank + number))


def step(rank: int, number: int, model: Any, optimizer: Any) -> None:
    model(data(rank, number)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def spread(model: nn.Module, rank: int) -> None:
    """Another replica on every rank."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * rank)


def operations_so_far(session: Any) -> int:
    """By the number of one more."""
    report = session.all_reduce_async(torch.ones(8)).wait(30)
    assert isinstance(report.operation, int)
    return report.operation


def forward_passes(rank: int, size: int, directory: str) -> list[int]:
    with process_group("gloo", rank, size, directory):
        model, _, session = trainer()
        batch = data(rank, 0)
        found = [operations_so_far(session)]
        with torch.no_grad():
            model(batch)
        found.append(operations_so_far(session))
        with model.no_sync():
            model(batch).sum().backward()
        found.append(operations_so_far(session))
        model.eval()
        model(batch)
        found.append(operations_so_far(session))
        model.train()
        model(batch)
        found.append(operations_so_far(session))
        model(batch)
        found.append(operations_so_far(session))
        session.close()
        return found


def test_only_the_first_forward_pass_of_a_step_sends_a_part(on_ranks: OnRanks) -> None:
    asked, sent = range(6), [0, 0, 0, 0, 1, 1]
    expected = [others + part for others, part in zip(asked, sent, strict=True)]
    assert on_ranks(2, forward_passes) == [expected, expected]


def one_rank_looks_more_often(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(learning_rate=0.0)
        spread(model, rank)
        before = flat(model)
        for number in range(2 * ROUND):
            if rank == 0:
                model(data(rank, 99))  # without a backward pass
            step(rank, number, model, optimizer)
        session.close()
        return before, flat(model)


def test_a_rank_may_have_forward_passes_of_its_own(on_ranks: OnRanks) -> None:
    (before, first), (_, second) = on_ranks(2, one_rank_looks_more_often)
    assert torch.equal(first, second)
    assert not torch.equal(before, first)


def two_backward_passes_for_one_step(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(learning_rate=0.0)
        spread(model, rank)
        for number in range(2 * ROUND + 1):
            model(data(rank, number)).sum().backward()
            step(rank, number, model, optimizer)
        session.close()
        return flat(model)


def test_a_part_whose_step_was_not_taken_gives_way_to_the_next(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, two_backward_passes_for_one_step)
    assert torch.equal(first, second)


def changes_parameters_in_between(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(learning_rate=0.0)
        for number in range(ROUND):
            model(data(rank, number)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(number)
            optimizer.step()
        session.close()
        return flat(model)


def test_what_the_program_has_changed_since_is_not_undone(on_ranks: OnRanks) -> None:
    for parameters in on_ranks(2, changes_parameters_in_between):
        assert torch.equal(parameters, torch.full_like(parameters, ROUND - 1))


def parameters_move(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(learning_rate=0.0)
        step(rank, 0, model, optimizer)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        spread(model, rank)
        for number in range(2 * ROUND):
            step(rank, number, model, optimizer)
        session.close()
        return flat(model)


def test_parameters_may_get_other_memory(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, parameters_move)
    assert torch.equal(first, second)


def compiled(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(learning_rate=0.0)
        spread(model, rank)
        faster = torch.compile(model, backend="eager")
        for number in range(2 * ROUND):
            step(rank, number, faster, optimizer)
        session.close()
        return flat(model)


def test_compiled_models_are_kept_together_too(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, compiled)
    assert torch.equal(first, second)
