"""A training state as bytes: equal states have equal hashes, and whoever applies one trains on alike."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from optireduce import MismatchError
from optireduce.snapshot.state import Image, TrainingState, part_of

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "steps": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "sequence": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        ],
        [2],
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, history_size=3),
}


def network(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    module[0].to(memory_format=torch.channels_last)
    return module.to(dtype)


class Replica:
    def __init__(
        self,
        seed: int,
        optimizer: str = "adamw",
        scheduler: str = "one cycle",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = network(seed, dtype)
        if optimizer == "lbfgs":  # which takes no other layout
            self.model.to(memory_format=torch.contiguous_format)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.dtype = dtype

    def train(self, steps: int, seed: int = 0) -> None:
        for step in range(steps):
            torch.manual_seed(1_000 * seed + step)
            images = torch.randn(4, 2, 4, 4, dtype=self.dtype)

            def closure(images: torch.Tensor = images) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.model(images).square().sum()
                loss.backward()
                return loss

            self.optimizer.step(closure)
            self.scheduler.step()

    def state(self) -> TrainingState:
        return TrainingState(self.model, self.optimizer, [self.scheduler])

    def digests(self) -> tuple[str, str]:
        return self.state().shared().digest(), self.state().buffers().digest()


def sent(image: Image, parts: int = 3) -> Image:
    """As it arrives elsewhere: fetched in parts, in memory of its own."""
    ranges = [part_of(image.size, part, parts) for part in range(parts)]
    body = torch.cat([image.copy(*each) for each in ranges])
    assert body.numel() == image.size
    return Image(bytes(image.manifest), [body])


def hand_over(source: Replica, target: Replica) -> None:
    target.state().apply(sent(source.state().shared()), sent(source.state().buffers()))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_who_takes_over_a_state_trains_on_to_the_same_bits(optimizer: str) -> None:
    source, fresh = Replica(1, optimizer, "lambda"), Replica(2, optimizer, "lambda")
    source.train(3)
    assert source.digests() != fresh.digests()
    hand_over(source, fresh)
    assert source.digests() == fresh.digests()
    source.train(3, seed=1)
    fresh.train(3, seed=1)
    assert source.digests() == fresh.digests()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_travel_along(scheduler: str) -> None:
    source, other = Replica(1, "momentum", scheduler), Replica(2, "momentum", scheduler)
    source.train(4)
    other.train(1)
    hand_over(source, other)
    source.train(2, seed=1)
    other.train(2, seed=1)
    assert source.scheduler.get_last_lr() == other.scheduler.get_last_lr()
    assert source.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"]
    assert source.digests() == other.digests()


def test_a_state_wider_than_its_parameter_stays_so() -> None:
    """``load_state_dict`` would round it to the parameter's type."""
    source, fresh = (Replica(seed, "momentum", dtype=torch.bfloat16) for seed in (1, 2))
    source.train(2)
    for entry in source.optimizer.state.values():
        entry["momentum_buffer"] = entry["momentum_buffer"].float() + 2.0**-20
    hand_over(source, fresh)
    assert source.digests() == fresh.digests()
    entry = next(iter(fresh.optimizer.state.values()))
    assert entry["momentum_buffer"].dtype == torch.float32


def test_the_hash_does_not_depend_on_a_rank_s_history() -> None:
    """The order of groups and dictionaries, how the optimizer computes, and the identity of objects."""
    models = [network(1), network(1)]
    options: list[dict[str, Any]] = [{"foreach": True}, {"foreach": False}]
    states = []
    for model, option, turned in zip(models, options, (False, True), strict=True):
        weights = [each for each in model.parameters() if each.ndim > 1]
        others = [each for each in model.parameters() if each.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": 0.1}, {"params": others}]
        optimizer = torch.optim.SGD(groups[::-1] if turned else groups, lr=0.1, momentum=0.5, **option)
        model(torch.ones(2, 2, 4, 4)).sum().backward()
        optimizer.step()
        states.append(TrainingState(model, optimizer, []))
    assert states[0].shared().digest() == states[1].shared().digest()
    states[1].apply(states[0].shared(), states[0].buffers())
    assert states[0].shared().digest() == states[1].shared().digest()
    states[1].optimizer.param_groups[0]["lr"] *= 1 + 2**-50
    assert states[0].shared().digest() != states[1].shared().digest()


def test_running_statistics_are_no_part_of_what_ranks_must_share() -> None:
    source, other = Replica(1), Replica(1)
    other.model.eval()
    with torch.no_grad():
        source.model(torch.randn(4, 2, 4, 4))
    ours, theirs = source.digests(), other.digests()
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]


def test_one_bit_makes_another_hash() -> None:
    replica = Replica(1)
    before = replica.digests()[0]
    with torch.no_grad():
        last = list(replica.model.parameters())[-1]
        last.view(torch.int32)[-1] ^= 1
    assert replica.digests()[0] != before


class Kept:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["value"] == "refused":
            raise KeyError("what the object says")
        self.value = copy.deepcopy(state["value"])


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    value = {
        "plain": [None, True, 3, -0.0, float("inf"), 0.1 + 0.2, "ä", b"\x00\xff", 2**70],
        1: (1, (2.5,)),
        "1": {3, 1, 2},
        "count": Counter({2: 1, 5: 3}),
        "order": OrderedDict([("b", 1), ("a", 2)]),
        "empty": [torch.empty(0), torch.tensor(7), {}, []],
        "tensors": [torch.arange(6).reshape(2, 3).t(), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)],
        "flags": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
    }
    found = sent(Image.of(value, "a value")).value()
    assert repr(found) == repr({key: found[key] for key in found})
    assert found.keys() == value.keys()
    for key, each in value.items():
        assert repr(found[key]) == repr(each), key
        assert type(found[key]) is type(each)


@pytest.mark.parametrize("value", [object(), [torch.Generator()], {"a": {"b": len}}])
def test_other_values_are_refused_with_their_place(value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"state\[?.* is a (object|Generator|builtin_function_or_method): only"
    ):
        Image.of({"x": value}, "state")


def unchanged_after(change: Callable[[Replica], TrainingState]) -> str:
    """The text of the error; nothing may have changed."""
    source, target = Replica(1), Replica(2)
    source.train(2)
    target.train(1)
    state = change(target)
    before = state.shared().digest(), state.buffers().digest()
    with pytest.raises(MismatchError) as raised:
        state.apply(sent(source.state().shared()), sent(source.state().buffers()))
    assert (state.shared().digest(), state.buffers().digest()) == before
    return str(raised.value)


def test_a_model_of_another_shape_is_named() -> None:
    def other(target: Replica) -> TrainingState:
        target.model[3] = nn.Linear(12, 6)
        return target.state()

    text = unchanged_after(other)
    assert "'3.weight' is float32 [6, 12] here" in text
    assert "float32 [5, 12]" in text


def test_another_number_of_parameters_is_told() -> None:
    def other(target: Replica) -> TrainingState:
        target.model.append(nn.Linear(5, 5))
        return target.state()

    assert "8 parameters here and 6 on the other ranks" in unchanged_after(other)


def test_another_optimizer_is_told() -> None:
    def other(target: Replica) -> TrainingState:
        groups = [{"params": [each]} for each in target.model.parameters()]
        return TrainingState(target.model, torch.optim.AdamW(groups), [target.scheduler])

    assert "[1, 1, 1, 1, 1, 1] parameters here and [6]" in unchanged_after(other)


def test_other_kept_objects_are_told() -> None:
    def other(target: Replica) -> TrainingState:
        return TrainingState(target.model, target.optimizer, [target.scheduler, Kept(1)])

    assert "OneCycleLR, Kept here and OneCycleLR on the other ranks" in unchanged_after(other)


def test_nothing_changes_when_the_last_object_refuses() -> None:
    source, target = Replica(1), Replica(2)
    source.train(2)
    theirs = TrainingState(source.model, source.optimizer, [source.scheduler, Kept("refused")])
    ours = TrainingState(target.model, target.optimizer, [target.scheduler, Kept("mine")])
    before = ours.shared().digest(), ours.buffers().digest()
    with pytest.raises(MismatchError, match="what the object says"):
        ours.apply(sent(theirs.shared()), sent(theirs.buffers()))
    assert (ours.shared().digest(), ours.buffers().digest()) == before


def test_nothing_changes_when_the_optimizer_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Replica(1), Replica(2)
    source.train(2)
    target.train(1)
    load = target.optimizer.load_state_dict
    refusals = [KeyError("what the optimizer says")]

    def half(state: dict[str, Any]) -> None:
        load(state)
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(target.optimizer, "load_state_dict", half)
    before = target.digests()
    with pytest.raises(MismatchError, match="what the optimizer says"):
        hand_over(source, target)
    assert target.digests() == before


@pytest.mark.parametrize("manifest", [b"", b"[", b"{}", b'{"dict":[]}', b'{"tensor":["float32",[-1]]}', b"3"])
def test_a_manifest_that_is_none_is_an_error_and_changes_nothing(manifest: bytes) -> None:
    target = Replica(2)
    before = target.digests()
    with pytest.raises(MismatchError, match="not readable"):
        target.state().apply(Image(manifest, []), target.state().buffers())
    assert target.digests() == before


def test_a_copy_does_not_follow_the_model() -> None:
    replica = Replica(1)
    image = replica.state().shared()
    for begin, end in ((0, image.size), (0, 4), (0, 0)):
        taken = image.copy(begin, end)
        before = taken.clone()
        with torch.no_grad():
            next(replica.model.parameters()).add_(1.0)
        assert torch.equal(taken, before)
