"""What must be exact is never given a deadline, whoever asks for it and however."""

from __future__ import annotations

import threading
from datetime import timedelta

import numpy as np
import pytest
from fake_engine import fake_engine, fake_group, fake_session

import optireduce
from optireduce import Config
from optireduce.exactness import exact_requested

LONG = np.zeros(16_384, np.float32)  # as long as bounded_min_bytes
SHORT = LONG[:-1]


def test_exact_holds_inside_and_ends_with_the_block() -> None:
    assert not exact_requested()
    with optireduce.exact():
        with optireduce.exact():
            pass
        assert exact_requested()
    assert not exact_requested()


def test_exact_ends_when_the_block_fails() -> None:
    with pytest.raises(KeyError), optireduce.exact():
        raise KeyError
    assert not exact_requested()


def test_only_long_operations_outside_exact_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch)
    communicator.all_reduce(LONG.copy())
    communicator.all_reduce(SHORT.copy())
    with optireduce.exact():
        communicator.all_reduce(LONG.copy())
    communicator.all_reduce(LONG.copy(), "sum")
    assert [call.bounded for call in engine.calls] == [True, False, False, True]


def test_the_limit_is_in_bytes_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch, Config(bounded_min_bytes=16))
    for array in (np.zeros(3, np.float32), np.zeros(4, np.float32), np.zeros(2), np.zeros(7, np.float16)):
        communicator.all_reduce(array)
    assert [call.bounded for call in engine.calls] == [False, True, True, False]


def test_nothing_has_a_deadline_where_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch, Config(bounded=False))
    communicator.all_reduce(LONG.copy())
    assert [call.bounded for call in engine.calls] == [False]


def test_it_counts_where_an_operation_is_started_not_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    communicator, engine = fake_group(monkeypatch)
    with optireduce.exact():
        exact = communicator.all_reduce_async(LONG.copy())
    bounded = communicator.all_reduce_async(LONG.copy())
    waiter = threading.Thread(target=exact.wait)
    waiter.start()
    with optireduce.exact():
        bounded.wait()
    waiter.join(20.0)
    assert [call.bounded for call in engine.calls] == [False, True]


def test_the_backend_follows_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from optireduce.process_group import OptiReduceGroup

    engine = fake_engine(monkeypatch)
    store = torch.distributed.HashStore()
    group = OptiReduceGroup(store, 0, 1, timedelta(seconds=20), Config(interface="lo"))
    options = torch.distributed.AllreduceOptions()
    group.allreduce([torch.zeros(16_384)], options).wait()
    group.allreduce([torch.zeros(16_383)], options).wait()
    with optireduce.exact():
        group.allreduce([torch.zeros(16_384)], options).wait()
    group.shutdown()
    assert [call.bounded for call in engine.calls] == [True, False, False]


def test_gradients_through_attach_have_a_deadline_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with fake_session(monkeypatch, Config(interface="lo")) as (model, session, engine):
        model(torch.ones(1, 8)).sum().backward()
        with optireduce.exact():
            model(torch.ones(1, 8)).sum().backward()
        assert session.last_step is not None
        assert session.last_step.step == 1
        session.all_reduce_async(torch.zeros(4, requires_grad=True), weight=7).wait()
    assert [call.bounded for call in engine.calls] == [True, False, True]
    assert [call.weight for call in engine.calls] == [1, 1, 7]


@pytest.mark.parametrize("weight", [0, 1, 65_535])
def test_a_weight_reaches_the_engine_in_both_modes(monkeypatch: pytest.MonkeyPatch, weight: int) -> None:
    communicator, engine = fake_group(monkeypatch)
    communicator.all_reduce(LONG.copy(), weight=weight)
    with optireduce.exact():
        communicator.all_reduce(LONG.copy(), weight=weight)
    communicator.all_reduce(LONG.copy())
    assert [call.weight for call in engine.calls] == [weight, weight, 1]


@pytest.mark.parametrize(
    ("weight", "op", "error", "text"),
    [
        (-1, "mean", ValueError, "weight = -1 .* 0 to 65535"),
        (65_536, "mean", ValueError, "weight = 65536 .* 0 to 65535"),
        (1.5, "mean", TypeError, "weight = 1.5 is a float.*integer"),
        (True, "mean", TypeError, "weight = True is a bool.*integer"),
        (2, "sum", ValueError, 'weight = 2 needs op = "mean"'),
    ],
)
def test_a_weight_that_means_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, weight: object, op: str, error: type[Exception], text: str
) -> None:
    communicator, engine = fake_group(monkeypatch)
    with pytest.raises(error, match=text):
        communicator.all_reduce(LONG.copy(), op, weight=weight)  # type: ignore[arg-type]
    assert not engine.calls
