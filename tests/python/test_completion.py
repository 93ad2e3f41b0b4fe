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
        return self.finished.wait(100.0)


def test_a_callback_that_waits_for_a_later_operation() -> None:
    pool: Any = CompletionPool()
    first, second = FakeOperation(), FakeOperation()
    second_completed, first_completed = threading.Event(), threading.Event()

    def wait_for_second() -> None:
        pool.submit(second, second_completed.set)
        second.finished.set()
        if second_completed.wait(100.0):
            first_completed.set()

    pool.submit(first, wait_for_second)
    first.finished.set()
    assert first_completed.wait(100.0)
    pool.stop()


def test_all_blocked_at_once() -> None:
    """Ten callbacks in a chain, each of which returns only when the next one has."""
    pool: Any = CompletionPool()
    operations = [FakeOperation() for _ in range(10)]
    returned = [threading.Event() for _ in range(11)]
    returned[10].set()

    def callback(index: int) -> None:
        assert returned[index + 1].wait(100.0)
        returned[index].set()

    for index, operation in enumerate(operations):
        pool.submit(operation, lambda index=index: callback(index))
        operation.finished.set()
    assert returned[0].wait(100.0)
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
    assert done.wait(100.0)
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
    assert seen.wait(100.0)
    pool.stop()


class WatchedCondition(threading.Condition):
    """Tells when a thread waits, and when it has been woken up in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.waits_again = threading.Event(), threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        (self.waits_again if self.waits.is_set() else self.waits).set()
        return super().wait(timeout)


def test_stops_all_threads_while_an_operation_is_waited_for() -> None:
    """The one that is idle hears of it too early, and must hear of it again."""
    pool: Any = CompletionPool()
    condition = pool._changed = WatchedCondition()
    first, second = FakeOperation(), FakeOperation()
    first_is_led, second_is_led = threading.Event(), threading.Event()
    first.wait = lambda: first_is_led.set() or first.finished.wait(100.0)  # type: ignore[method-assign]
    second.wait = lambda: second_is_led.set() or condition.waits_again.wait(100.0)  # type: ignore[method-assign]
    pool.submit(first, lambda: second_is_led.wait(100.0))
    assert first_is_led.wait(100.0)  # or the second operation would find a thread that is idle too early
    first.finished.set()
    pool.submit(second, lambda: None)
    assert condition.waits.wait(100.0)
    pool.stop()
    assert condition.waits_again.is_set()
    assert not any(thread.is_alive() for thread in pool._threads)
