"""What attach() tells the engine about each bucket, and what it makes of the engine's reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fake_engine import FakeEngine, fake_session, fake_world
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import optireduce
from optireduce import Config, attach
from optireduce.streams import Streams

LAYERS, WIDTH = 4, 32
SMALL = {"bucket_cap_mb": 0.005}  # a bucket or so for each layer, once DDP has rebuilt them


def several_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def backward(model: Any, count: int = 1, width: int = WIDTH) -> None:
    for _ in range(count):
        model(torch.ones(2, width)).sum().backward()


def by_step(engine: FakeEngine) -> list[list[Any]]:
    steps: dict[int, list[Any]] = {}
    for call in engine.calls:
        steps.setdefault(call.step, []).append(call)
    return list(steps.values())


def test_only_a_step_whose_layout_is_new_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch, module=several_layers(), **SMALL) as (model, _, engine):
        backward(model, 5)
    steps = by_step(engine)
    assert [step[0].step for step in steps] == [0, 1, 2, 3, 4]
    assert [{call.bounded for call in step} for step in steps] == [{False}, {False}, {True}, {True}, {True}]
    streams = [[call.stream for call in step] for step in steps]
    assert streams[0] != streams[1] == streams[2] == streams[4]
    assert len(set(streams[1])) == len(streams[1]) > 1
    assert all(0 < stream < 2**32 for step in streams for stream in step)


def test_two_processes_give_a_bucket_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers from Python's own hash or from addresses would differ."""
    found = []
    for _ in range(2):
        with fake_session(monkeypatch, module=several_layers(), **SMALL) as (model, _, engine):
            backward(model, 2)
        found.append([call.stream for call in engine.calls])
    assert found[0] == found[1]


def test_a_residual_moves_with_its_parameter_when_buckets_are_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every parameter's residual is its position: whatever the buckets, its gradient grows by so much."""
    with fake_session(monkeypatch, module=several_layers(), **SMALL) as (model, session, engine):
        backward(model)
        before = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        for layout in session._streams._known.values():
            residual = torch.zeros(layout.elements)
            for place in layout.places:
                place.of(residual).fill_(float(place.position))
            engine.residuals[layout.stream] = residual.numpy()
        backward(model)
        assert not engine.residuals
        for position, (parameter, old) in enumerate(zip(model.parameters(), before, strict=True)):
            torch.testing.assert_close(parameter.grad, old + position)
        model.zero_grad()
        backward(model)
        for parameter, old in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(parameter.grad, old)  # once, not again


class FakeBucket:
    def __init__(self, index: int, parameters: list[torch.Tensor]) -> None:
        self._index, self._parameters = index, parameters
        self._buffer = torch.zeros(sum(parameter.numel() for parameter in parameters))

    def index(self) -> int:
        return self._index

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        pieces = self._buffer.split([parameter.numel() for parameter in self._parameters])
        return [piece.view(like.shape) for piece, like in zip(pieces, self._parameters, strict=True)]


def test_a_bucket_that_did_not_change_keeps_its_residual() -> None:
    """Its operation of this step is in flight already when another bucket turns out to be new."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(3)])
    a, b, c = model.parameters()
    taken: list[int] = []

    class Kept(FakeEngine):
        def take_residual(self, stream: int) -> tuple[int, float, bytes]:
            taken.append(stream)
            return 0, 1.0, np.ones(2, np.float32).tobytes()

    def enter(index: int, *parameters: torch.Tensor) -> tuple[Any, bool, Any]:
        bucket: Any = FakeBucket(index, list(parameters))
        return *streams.enter(bucket, model), bucket

    streams = Streams(Kept())  # type: ignore[arg-type]
    streams.begin_step()
    kept, *_ = enter(0, a)
    enter(1, b)
    enter(2, c)
    streams.begin_step()
    assert enter(0, a)[:2] == (kept, False)
    layout, is_new, bucket = enter(1, c, b)  # of the same sizes, in another order
    assert is_new
    assert kept.stream not in taken
    assert len(taken) == 2
    streams.add_moved(layout, bucket.buffer(), 8.0)
    assert bucket.buffer().tolist() == [8.0] * 4


def test_parameters_of_the_same_sizes_in_another_order_are_another_stream() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(2)])
    a, b = model.parameters()
    streams = Streams(FakeEngine())  # type: ignore[arg-type]
    numbers = set()
    for order in ([a, b], [b, a]):
        bucket: Any = FakeBucket(0, list(order))
        numbers.add(streams.enter(bucket, model)[0].stream)
    assert len(numbers) == 2


def leave_residuals(session: Any, engine: FakeEngine, value: float) -> None:
    for layout in session._streams._known.values():
        engine.residuals[layout.stream] = np.full(layout.elements, value, np.float32)


def test_flush_makes_what_is_left_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2))
    module[0].to(memory_format=torch.channels_last)
    with fake_session(monkeypatch, module=module) as (model, session, engine):
        for _ in range(2):
            model(torch.ones(1, 2, 3, 3)).sum().backward()
        given = {}
        for layout in session._streams._known.values():
            residual = torch.arange(layout.elements, dtype=torch.float32)
            given |= {place.position: place.of(residual).clone() for place in layout.places}
            engine.residuals[layout.stream] = residual.numpy()
        calls = len(engine.calls)
        assert session.flush() is True
        for position, parameter in enumerate(model.parameters()):
            assert torch.equal(parameter.grad, given[position])
        assert all(not call.bounded and call.dtype == 0 for call in engine.calls[calls:])
        assert session.flush() is False  # once
        assert all(not parameter.grad.any() for parameter in model.parameters())


def test_flush_is_repeated_without_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        backward(model, 2, width=8)
        leave_residuals(session, engine, 2.0)
        engine.failing = {len(engine.calls): {"error_code": 6, "error": "rank 1 is no member any more"}}
        assert session.flush() is True
        assert all(torch.equal(each.grad, torch.full_like(each, 2.0)) for each in model.parameters())


@pytest.mark.parametrize("left", [True, False])
def test_flush_takes_the_last_step_only_if_something_is_left(
    monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
        backward(model, 2, width=8)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        if left:
            leave_residuals(session, engine, 2.0)
        assert session.flush(optimizer) is left
        for parameter, old in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(parameter.detach(), 0.5 * old - 2.0 if left else old)
            assert parameter.grad is None


@pytest.mark.parametrize("view", [True, False])
def test_buckets_are_lent_until_the_next_forward_pass_unless_gradients_live_in_them(
    monkeypatch: pytest.MonkeyPatch, view: bool
) -> None:
    with fake_session(monkeypatch, gradient_as_bucket_view=view) as (model, session, engine):
        backward(model, 3, width=8)
        with torch.no_grad():
            model(torch.ones(1, 8))  # writes to no bucket
        with model.no_sync():
            backward(model, width=8)
        lent = len(session._transport._readable)
        backward(model, width=8)
    assert [call.stays_readable for call in engine.calls] == [not view] * 4
    assert [call.releases for call in engine.calls] == ([0] * 4 if view else [0, 1, 2, 3])
    assert lent == (0 if view else 1)


def test_nothing_is_lent_where_the_forward_pass_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """``model.forward()`` runs no hooks: the bucket would be written to while the engine reads it."""
    with fake_session(monkeypatch) as (model, _, engine):
        for _ in range(3):
            model.forward(torch.ones(1, 8)).sum().backward()
    assert not any(call.stays_readable for call in engine.calls)


def test_narrow_memory_is_not_used_again_before_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(interface="lo", wire="bf16")
    with fake_session(monkeypatch, config) as (model, session, engine):
        backward(model, 2, width=8)
        backward(model, width=8)
        share = torch.zeros(72)
        session.all_reduce_async(share).wait()
    assert [(call.dtype, call.stays_readable) for call in engine.calls] == [(2, True)] * 3 + [(0, False)]
    assert [call.releases for call in engine.calls] == [0, 1, 2, 2]
    assert len({call.pointer for call in engine.calls[:3]}) == 1  # used again after the release


def exactness(monkeypatch: pytest.MonkeyPatch, config: Config | None = None, **options: Any) -> set[bool]:
    """Whether gradients have a deadline once the layout is known."""
    with fake_session(monkeypatch, config, **options) as (model, _, engine):
        backward(model, 6, width=8)
    return {call.bounded for call in engine.calls[3:]}  # DDP rebuilds its buckets after one or two steps


def test_where_gradients_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exactness(monkeypatch) == {True}
    assert exactness(monkeypatch, Config(bounded=False)) == {False}
    assert exactness(monkeypatch, find_unused_parameters=True) == {False}
    assert exactness(monkeypatch, static_graph=True) == {True}


def test_double_precision_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch, module=nn.Linear(8, 8).double()) as (model, _, engine):
        for _ in range(4):
            model(torch.ones(1, 8, dtype=torch.float64)).sum().backward()
    assert not any(call.bounded for call in engine.calls)


def test_join_is_exact_and_fixes_the_membership(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        backward(model, 3, width=8)
        assert not session.fixed_membership
        with model.join():
            backward(model, 3, width=8)
        assert session.fixed_membership
    assert [call.bounded for call in engine.calls] == [False, False, True, False, False, False]
    assert not any(call.stays_readable for call in engine.calls[3:])
    assert caplog.text.count("fixed membership") == 1


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        (nn.BatchNorm1d(8), {}, "broadcasts the model's buffers"),
        (nn.BatchNorm1d(8), {"broadcast_buffers": False}, None),
        (nn.Linear(8, 8), {"find_unused_parameters": True}, "find_unused_parameters=True"),
        (nn.Linear(8, 8), {}, None),
    ],
)
def test_collectives_outside_the_group_fix_the_membership(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: nn.Module,
    options: dict[str, Any],
    reason: str | None,
) -> None:
    with fake_world(monkeypatch) as engine, attach(DistributedDataParallel(module, **options)) as session:
        assert session.fixed_membership is engine.fixed_membership is (reason is not None)
    assert ("fixed membership" in caplog.text) is (reason is not None)
    assert reason is None or reason in caplog.text


def test_several_models_on_one_group_fix_the_membership_of_both(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_world(monkeypatch):
        first = attach(DistributedDataParallel(nn.Linear(2, 2)), Config(interface="lo"))
        assert not first.fixed_membership
        second = attach(DistributedDataParallel(nn.Linear(2, 2)), Config(interface="lo"))
        assert first.fixed_membership
        assert second.fixed_membership
        first.close()
        second.close()
        with attach(DistributedDataParallel(nn.Linear(2, 2)), Config(interface="lo")) as third:
            assert not third.fixed_membership  # the others have left
    assert caplog.text.count("several attached models") == 2


def test_the_scale_of_a_grad_scaler_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        backward(model, width=8)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        session.keep(scaler)
        backward(model, width=8)
        with pytest.raises(TypeError, match=r"keep\(\) got a float, which has no state_dict"):
            session.keep(scaler, 1024.0)
    assert [call.scale for call in engine.calls] == [1.0, 1024.0]


def test_a_step_that_excludes_too_much_is_skipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(monkeypatch) as engine:
        model = DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config = Config(interface="lo", skip_above=0.5, halt_after=2)
        session = attach(model, config, optimizer=optimizer)
        assert session.should_step()  # before any step
        engine.outcome = {"members": [0, 1], "excluded": [(0, 8 * 72), (1, 8 * 72)]}
        before = model.module.weight.detach().clone()
        backward(model, width=8)
        assert not session.should_step()
        assert not session.should_step()  # asking twice is not another step
        optimizer.step()
        backward(model, width=8)
        engine.outcome = {}
        backward(model, width=8)
        optimizer.step()
        assert not torch.equal(model.module.weight, before)
        assert session.stats()["skipped_steps"] == 1
        session.close()


def test_the_optimizer_does_nothing_in_a_skipped_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(monkeypatch) as engine:
        model = DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        config = Config(interface="lo", skip_above=0.5, halt_after=2)
        with attach(model, config, optimizer=optimizer):
            engine.outcome = {"excluded": [(0, 4 * 72)]}
            before = model.module.weight.detach().clone()
            backward(model, width=8)
            optimizer.step()
            assert torch.equal(model.module.weight, before)
            backward(model, width=8)
            with pytest.raises(optireduce.TrainingHaltedError, match="2 steps in a row"):
                optimizer.step()


def test_a_failed_backward_pass_keeps_the_optimizer_from_stepping(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(monkeypatch) as engine:
        model = DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with attach(model, Config(interface="lo"), optimizer=optimizer) as session:
            engine.outcome = {"error_code": 6, "error": "rank 1 was removed", "ranks": [1]}
            with pytest.raises(RuntimeError, match="rank 1 was removed"):
                backward(model, width=8)
            assert isinstance(session.error, optireduce.RankLostError)
            with pytest.raises(optireduce.RankLostError) as caught:
                optimizer.step()
            assert caught.value.ranks == (1,)
            with pytest.raises(optireduce.RankLostError):
                session.should_step()
            engine.outcome = {}
            optimizer.zero_grad()
            backward(model, width=8)  # the next one is another step
            optimizer.step()
            assert session.error is None


def test_callbacks_may_use_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run while no lock of the session is held."""
    with fake_session(monkeypatch) as (model, session, engine):
        seen: list[Any] = []

        def callback(event: Any) -> None:
            session.all_reduce_async(torch.zeros(3)).wait()
            seen.append((event.kind, session._steps.lock.locked()))

        session.on_membership(callback)
        for _ in range(3):
            engine.new_events = [("removed", 1, 1, 0)]
            backward(model, width=8)
    assert seen == [("removed", False)] * 3


def test_other_operations_are_exact_and_belong_to_the_newest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's step must never fall."""
    with fake_session(monkeypatch) as (model, session, engine):
        backward(model, 3, width=8)
        session.all_reduce_async(torch.zeros(100_000), weight=3).wait()
        backward(model, width=8)
    assert [call.step for call in engine.calls] == [0, 1, 2, 2, 3]
    assert (engine.calls[3].bounded, engine.calls[3].stream, engine.calls[3].weight) == (False, 0, 3)


def test_the_step_report_names_the_rank_that_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session(monkeypatch) as (model, session, engine):
        engine.outcome = {"members": [0, 1, 2], "view": 4, "waited_for": 2, "waited_seconds": 0.3}
        backward(model, width=8)
        step = session.last_step
    assert (step.step, step.waited_for, step.waited_seconds) == (0, 2, 0.3)
    assert (step.view, step.members) == (4, (0, 1, 2))


@pytest.mark.parametrize(
    ("config", "optimizer", "on"),
    [
        (Config(), None, False),
        (Config(delivery="best-effort"), None, True),
        (Config(delivery="best-effort"), torch.optim.SGD, True),
        (Config(delivery="best-effort"), torch.optim.AdamW, False),
        (Config(delivery="best-effort", hadamard="on"), torch.optim.AdamW, True),
        (Config(delivery="best-effort", hadamard="off"), None, False),
    ],
)
def test_gradients_are_encoded_only_with_best_effort(
    monkeypatch: pytest.MonkeyPatch, config: Config, optimizer: Any, on: bool
) -> None:
    with fake_world(monkeypatch):
        model = DistributedDataParallel(nn.Linear(8, 8))
        chosen = optimizer and optimizer(model.parameters(), lr=0.1)
        with attach(model, config, optimizer=chosen) as session:
            backward(model, 2, width=8)
            assert session.stats()["hadamard"] is on


# --- Bad input -------------------------------------------------------------------------------------------


@pytest.fixture
def ddp(monkeypatch: pytest.MonkeyPatch) -> Any:
    with fake_world(monkeypatch):
        yield DistributedDataParallel(nn.Linear(4, 4))


def test_another_models_optimizer_is_refused(ddp: Any) -> None:
    wrong = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"SGD whose parameters are not in ddp_model \(0 of 2 match\)"):
        attach(ddp, optimizer=wrong)


def test_a_scheduler_is_not_an_optimizer(ddp: Any) -> None:
    scheduler: Any = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(ddp.parameters(), lr=0.1), 1)
    with pytest.raises(TypeError, match=r"optimizer is a StepLR: .*pass its \.optimizer"):
        attach(ddp, optimizer=scheduler)


def test_settings_must_be_a_config(ddp: Any) -> None:
    wrong: Any = {"wire": "bf16"}
    with pytest.raises(TypeError, match=r"config is a dict: it must be an optireduce\.Config"):
        attach(ddp, wrong)
    optimizer: Any = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"config is a SGD: pass the optimizer by name"):
        attach(ddp, optimizer)


def test_a_model_is_attached_once(ddp: Any) -> None:
    with attach(ddp), pytest.raises(ValueError, match="already has the communication hook average_bucket"):
        attach(ddp)


def test_a_model_must_be_ddp() -> None:
    wrong: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"ddp_model is a Linear: .*wrap the model first"):
        attach(wrong)


def test_a_model_is_attached_before_it_is_compiled(ddp: Any) -> None:
    compiled: Any = torch.compile(ddp, backend="eager")
    with pytest.raises(TypeError, match=r"ddp_model is a OptimizedModule: .*before torch\.compile"):
        attach(compiled)


def test_a_wrapped_optimizer_is_unwrapped(ddp: Any) -> None:
    """As Accelerate wraps it: an Optimizer that holds the real one and has no hooks."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    inner = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with attach(ddp, optimizer=Wrapper(inner)):
        assert len(inner._optimizer_step_pre_hooks) == 1


def test_exact_is_gone_with_a_reason() -> None:
    with pytest.raises(AttributeError, match=r"optireduce.exact is gone: .*are exact"):
        _ = optireduce.exact  # type: ignore[attr-defined]
