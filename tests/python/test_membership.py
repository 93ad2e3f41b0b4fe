"""Whoever trains must hear which ranks were removed; what callbacks do may not stop training."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import numpy as np
import pytest
from fake_engine import fake_engine, fake_group

import optireduce
from optireduce import Communicator, Config, MembershipEvent
from optireduce.membership import Membership

REMOVED = ("removed", 2, 1, 117)
RETURNED = ("returned", 2, 2, 140)


def reduce_once(communicator: Communicator) -> None:
    communicator.all_reduce(np.zeros(4, np.float32))


def test_callbacks_get_events_in_order_with_the_operation_that_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    communicator, engine = fake_group(monkeypatch)
    seen: list[MembershipEvent] = []
    communicator.on_membership(seen.append)
    reduce_once(communicator)
    assert seen == []
    engine.new_events = [REMOVED, RETURNED]
    reduce_once(communicator)
    assert seen == [MembershipEvent("removed", 2, 1, 117), MembershipEvent("returned", 2, 2, 140)]


def test_a_process_group_tells_its_events_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from optireduce.process_group import OptiReduceGroup

    engine = fake_engine(monkeypatch)
    store = torch.distributed.HashStore()
    group = OptiReduceGroup(store, 0, 1, timedelta(seconds=20), Config(interface="lo"))
    seen: list[MembershipEvent] = []
    optireduce.on_membership(seen.append, group)
    engine.new_events = [REMOVED]
    group.allreduce([torch.zeros(4)], torch.distributed.AllreduceOptions()).wait()
    group.shutdown()
    assert [event.rank for event in seen] == [2]
    with pytest.raises(TypeError, match=r"no process group: on_membership\(\) needs"):
        optireduce.on_membership(seen.append)


def test_events_of_an_operation_that_failed_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch)
    seen: list[MembershipEvent] = []
    communicator.on_membership(seen.append)
    engine.new_events = [REMOVED]
    engine.outcome = {"error_code": 4, "error": "too few", "ranks": [2]}
    with pytest.raises(RuntimeError, match="too few"):
        reduce_once(communicator)
    assert [event.rank for event in seen] == [2]


def test_the_log_says_it_in_words(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    communicator, engine = fake_group(monkeypatch)
    engine.new_events = [REMOVED, RETURNED, ("left behind", 0, 3, 150)]
    reduce_once(communicator)
    assert {(record.name, record.levelno) for record in caplog.records} == {("optireduce", logging.WARNING)}
    assert [record.getMessage() for record in caplog.records] == [
        "rank 2 was removed from the group, because it left or is silent (view 1, from operation 117 on)",
        "rank 2 has returned to the group (view 2, from operation 140 on)",
        "rank 0 was left behind by the group: it missed too much to replay (view 3, from operation 150 on)",
    ]


def test_a_callback_that_fails_is_logged_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    communicator, engine = fake_group(monkeypatch)
    seen: list[MembershipEvent] = []

    def broken(event: MembershipEvent) -> None:
        raise KeyError("what the callback did wrong")

    communicator.on_membership(broken)
    communicator.on_membership(seen.append)
    engine.new_events = [REMOVED, RETURNED]
    reduce_once(communicator)
    assert len(seen) == 2
    assert caplog.text.count("KeyError: 'what the callback did wrong'") == 2


def test_a_callback_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch)
    seen: list[MembershipEvent] = []
    remove = communicator.on_membership(seen.append)
    remove()
    remove()
    engine.new_events = [REMOVED]
    reduce_once(communicator)
    assert seen == []


def test_a_callback_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, _ = fake_group(monkeypatch)
    with pytest.raises(TypeError, match=r"callback is a str.*MembershipEvent"):
        communicator.on_membership("log it")  # type: ignore[arg-type]


def test_a_callback_may_start_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called with a lock held, or again from within, it would wait for itself or see events out of order."""
    communicator, engine = fake_group(monkeypatch)
    seen: list[tuple[str, str]] = []

    def callback(event: MembershipEvent) -> None:
        seen.append(("in", event.kind))
        if event.kind == "removed":
            engine.new_events = [RETURNED]
            reduce_once(communicator)
        seen.append(("out", event.kind))

    communicator.on_membership(callback)
    engine.new_events = [REMOVED]
    done = threading.Thread(target=reduce_once, args=(communicator,), daemon=True)
    done.start()
    done.join(100.0)
    assert seen == [("in", "removed"), ("out", "removed"), ("in", "returned"), ("out", "returned")]


def test_threads_that_end_operations_together_deliver_one_event_at_a_time() -> None:
    events = [[REMOVED], [RETURNED]]
    membership = Membership(lambda: events.pop(0) if events else [])
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def callback(event: MembershipEvent) -> None:
        inside.set()
        assert go_on.wait(100.0)
        seen.append(event.kind)

    membership.register(callback)
    first = threading.Thread(target=membership.update, daemon=True)
    first.start()
    assert inside.wait(100.0)
    membership.update()  # returns at once; the first thread delivers this one as well
    assert seen == []
    go_on.set()
    first.join(100.0)
    assert seen == ["removed", "returned"]
