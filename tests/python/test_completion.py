"""Callbacks of one future may wait for a later one: whoever completes futures must never be the last to
wait."""

from __future__ import annotations

import threading
from typing import Any

from optireduce.completion import CompletionPool


class FakeOperation:
    """Done when told so."""

    def __init__(self) -> None:
        self.finished = threading.Event()

    def wait(self) -> bool:
        return self.finished.wait(20.0)


def test_a_callback_that_waits_for_a_later_operation() -> None:
    pool: Any = CompletionPool()
    first, second = FakeOperation(), FakeOperation()
    second_completed, first_completed = threading.Event(), threading.Event()

    def wait_for_second() -> None:
        pool.submit(second, second_completed.set)
        second.finished.set()
        if second_completed.wait(20.0):
            first_completed.set()

    pool.submit(first, wait_for_second)
    first.finished.set()
    assert first_completed.wait(20.0)
    pool.stop()


def test_all_blocked_at_once() -> None:
    """Ten callbacks in a chain, each of which returns only when the next one has."""
    pool: Any = CompletionPool()
    operations = [FakeOperation() for _ in range(10)]
    returned = [threading.Event() for _ in range(11)]
    returned[10].set()

    def callback(index: int) -> None:
        assert returned[index + 1].wait(20.0)
        returned[index].set()

    for index, operation in enumerate(operations):
        pool.submit(operation, lambda index=index: callback(index))
        operation.finished.set()
    assert returned[0].wait(20.0)
    pool.stop()


def test_completes_in_order_and_stops() -> None:
    pool: Any = CompletionPool()
    seen: list[int] = []
    done = threading.Event()
    for index in range(50):
        operation = FakeOperation()
        operation.finished.set()
        pool.submit(
            operation, lambda index=index: seen.append(index) or (done.set() if index == 49 else None)
        )
    assert done.wait(20.0)
    pool.stop()
    assert sorted(seen) == list(range(50))
    assert not any(thread.is_alive() for thread in pool._threads)


def test_an_operation_whose_wait_fails_does_not_stop_the_others() -> None:
    pool: Any = CompletionPool()

    class Broken(FakeOperation):
        def wait(self) -> bool:
            raise RuntimeError("broken")

    good = FakeOperation()
    good.finished.set()
    seen = threading.Event()
    pool.submit(Broken(), lambda: None)
    pool.submit(good, seen.set)
    assert seen.wait(20.0)
    pool.stop()
