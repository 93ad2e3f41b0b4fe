"""attach(..., optimizer=...): replicas that stay together, and steps that are skipped together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce
from optireduce import Config
from optireduce.hadamard import Switch, may_help

OnRanks = Callable[..., list[Any]]
WIDTH = 64
QUIET = replace(CONFIG, warmup_operations=3, warmup_steps=0)
EXACT = replace(QUIET, bounded=False)  # a busy machine may lose something at a deadline


def trainer(
    config: Config, learning_rate: float = 0.05, optimizer_type: Any = torch.optim.SGD
) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    )
    optimizer = optimizer_type(model.parameters(), lr=learning_rate)
    return model, optimizer, optireduce.attach(model, config, optimizer=optimizer)


def step(rank: int, number: int, model: Any, optimizer: Any, factor: float = 1.0) -> None:
    data = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * rank + number))
    (factor * (model(data) - data).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def replicas_that_differ(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(replace(QUIET, resync_steps=5), learning_rate=0.0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * rank)
        before = flat(model)
        drifts = []
        for number in range(25):
            step(rank, number, model, optimizer)
            drifts.append(session.drift)
        session.close()
        return before, flat(model), drifts


def test_replicas_that_differ_become_equal_without_a_step_of_more_than_a_part(on_ranks: OnRanks) -> None:
    found = on_ranks(4, replicas_that_differ)
    before, after, drifts = zip(*found, strict=True)
    assert not torch.equal(before[0], before[1])
    for rank in range(1, 4):
        assert torch.equal(after[0], after[rank])
    assert all(rank[0] is None for rank in drifts)  # not all parts have been compared yet
    assert all(rank[-1] == 0.0 for rank in drifts)
    assert max(drift for rank in drifts for drift in rank if drift is not None) > 1e-3


def synchronized(rank: int, size: int, directory: str, resync_steps: int) -> tuple[Any, ...]:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(replace(QUIET, resync_steps=resync_steps))
        step(rank, 0, model, optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0 + rank)
        before = flat(model)
        all_came = session.synchronize()
        after = flat(model)
        step(rank, 1, model, optimizer)
        session.close()
        return before, after, all_came


@pytest.mark.parametrize("resync_steps", [0, 50])
def test_replicas_are_equal_at_once_when_asked_for(on_ranks: OnRanks, resync_steps: int) -> None:
    found = on_ranks(3, synchronized, resync_steps)
    before, after, all_came = zip(*found, strict=True)
    assert all_came == (True, True, True)
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[0], after[2])
    for replica in before:  # a part of it is everybody's now
        assert 0.2 < float((after[0] == replica).float().mean()) < 0.5


def training_without_losses(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    results = []
    for label, options in (("with", {}), ("without", {"resync_steps": 0, "skip_above": 1.0})):
        with process_group("gloo", rank, size, directory, label=label):
            model, optimizer, session = trainer(replace(EXACT, **options), optimizer_type=torch.optim.Adam)
            for number in range(12):
                step(rank, number, model, optimizer)
            results.append((flat(model), session.stats()))
            session.close()
    return tuple(results)


def test_where_nothing_is_lost_nothing_changes(on_ranks: OnRanks) -> None:
    found = on_ranks(3, training_without_losses)
    for (kept, stats), (plain, _) in found:
        assert torch.equal(kept, plain)
        assert torch.equal(kept, found[0][0][0])
        assert stats["skipped_steps"] == stats["unknown_verdicts"] == 0
        assert stats["drift"] is None or stats["drift"] == 0.0


def lossy_training(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    config = replace(
        QUIET, mtu=576, repair=False, drop=0.1, impairment_seed=rank + 1, skip_above=0.05, halt_after=4
    )
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(config)
        for number in range(10):  # the warm-up loses nothing: its operations repair
            before = flat(model)
            try:
                step(rank, number, model, optimizer)
            except optireduce.TrainingHaltedError as error:
                skipped = session.stats()["skipped_steps"]
                session.close()
                return torch.equal(before, flat(model)), skipped, str(error)
        session.close()
        return False, 0, "never halted"


def test_steps_that_lose_too_much_are_skipped_by_all_and_end_training(on_ranks: OnRanks) -> None:
    for unchanged, skipped, error in on_ranks(3, lossy_training):
        assert "4 steps in a row lost more than skip_above = 5%" in error
        assert unchanged
        assert skipped >= 4


def training_with_nan(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(EXACT)
        for number in range(3):
            step(rank, number, model, optimizer, factor=float("nan") if rank == 1 and number == 2 else 1.0)
        verdict = session.last_verdict
        session.close()
        return verdict


def test_the_rank_that_sends_nan_is_named_on_all(on_ranks: OnRanks) -> None:
    for verdict in on_ranks(3, training_with_nan):
        assert verdict.non_finite == (1,)
        assert verdict.lost == 0.0


def loses_after_its_first_steps(rank: int, size: int, directory: str) -> list[float]:
    with process_group("gloo", rank, size, directory):
        lossy = replace(QUIET, mtu=576, repair=False, drop=0.1, hadamard="off", warmup_steps=6)
        model, optimizer, session = trainer(lossy)
        lost = []
        for number in range(12):
            step(rank, number, model, optimizer)
            lost.append(session.last_step.loss_share)
        session.close()
        return lost


def test_the_first_steps_lose_nothing(on_ranks: OnRanks) -> None:
    """However few operations the warm-up needs."""
    for lost in on_ranks(2, loses_after_its_first_steps):
        assert lost[:6] == [0.0] * 6
        assert min(lost[6:]) > 0.01


def asks_itself(rank: int, size: int, directory: str) -> Any:
    with process_group("gloo", rank, size, directory):
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
        session = optireduce.attach(
            model, replace(QUIET, mtu=576, repair=False, drop=0.1, skip_above=0.05, hadamard="off")
        )
        answers = [session.should_step()]  # before any step
        for _ in range(8):
            model(torch.randn(4, WIDTH)).sum().backward()
            answers.append(session.should_step())
        session.close()
        return answers


def test_a_loop_may_ask_whether_to_step(on_ranks: OnRanks) -> None:
    found = on_ranks(2, asks_itself)
    assert found[0][0] is True
    assert False in found[0]


def states_that_differ(rank: int, size: int, directory: str) -> list[float]:
    config = replace(QUIET, resync_steps=3, resync_optimizer=True)
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(config, 0.0, torch.optim.AdamW)
        for number in range(12):
            step(rank, number, model, optimizer)
            if number == 2:
                for state in optimizer.state.values():
                    state["exp_avg"].add_(rank)
        session.close()
        return [value for state in optimizer.state.values() for value in state["exp_avg"].flatten().tolist()]


def test_the_optimizers_state_is_kept_equal_if_asked(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, states_that_differ)
    assert first == second


def encoded_training(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    results = []
    for mode in ("off", "on"):
        with process_group("gloo", rank, size, directory, label=mode):
            model, optimizer, session = trainer(replace(QUIET, hadamard=mode))
            for number in range(10):
                step(rank, number, model, optimizer)
            results.append((flat(model), session.stats()["hadamard"]))
            session.close()
    return tuple(results)


def test_encoded_gradients_train_the_same(on_ranks: OnRanks) -> None:
    found = on_ranks(3, encoded_training)
    for (plain, plain_on), (encoded, encoded_on) in found:
        assert (plain_on, encoded_on) == (False, True)
        torch.testing.assert_close(encoded, plain, rtol=1e-4, atol=1e-6)
        assert not torch.equal(encoded, plain)
        assert torch.equal(encoded, found[0][1][0])


def encoding_that_adapts(rank: int, size: int, directory: str) -> list[bool]:
    config = replace(QUIET, mtu=576, repair=False, drop=0.1, resync_steps=0, impairment_seed=rank)
    with process_group("gloo", rank, size, directory):
        model, optimizer, session = trainer(config)
        modes = []
        for number in range(12):
            step(rank, number, model, optimizer)
            modes.append(session.stats()["hadamard"])
        session.close()
        return modes


def test_auto_encodes_when_much_is_lost_and_nothing_mends_it(on_ranks: OnRanks) -> None:
    for modes in on_ranks(2, encoding_that_adapts):
        assert modes[0] is False
        assert modes[-1] is True


def test_auto_never_encodes_for_optimizers_of_adams_kind() -> None:
    parameters = [torch.zeros(1, requires_grad=True)]
    assert may_help(torch.optim.SGD(parameters, lr=0.1), late_repair=False, resync=False)
    assert may_help(None, late_repair=False, resync=False)
    assert not may_help(torch.optim.SGD(parameters, lr=0.1), late_repair=True, resync=False)
    assert not may_help(torch.optim.SGD(parameters, lr=0.1), late_repair=False, resync=True)
    for adaptive in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam):
        assert not may_help(adaptive(parameters, lr=0.1), late_repair=False, resync=False)


def test_auto_has_hysteresis() -> None:
    switch = Switch("auto", may_help=True)
    for _ in range(50):
        switch.learn(0.005)
    assert not switch.on
    for _ in range(50):
        switch.learn(0.02)
    assert switch.on
    for _ in range(50):
        switch.learn(0.005)
    assert switch.on
    for _ in range(50):
        switch.learn(0.0)
    assert not switch.on
    for mode, on in (("on", True), ("off", False)):
        fixed = Switch(mode, may_help=True)
        fixed.learn(1.0 - on)
        assert fixed.on is on
