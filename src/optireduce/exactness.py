"""The promise that an all-reduce is exact, whatever the group's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_requested: ContextVar[bool] = ContextVar("optireduce_exact", default=False)


@contextmanager
def exact() -> Iterator[None]:
    """All-reduces started inside run to completion and lose nothing, however long they are: for metrics,
    parameter averaging and whatever else must be exact. A rank that is missing then fails them at their
    timeout. Use it on every rank alike.

    It holds for the thread (and the asyncio task) that enters it, and for operations started there, whoever
    waits for them. Threads started inside do not inherit it; the backward pass of a model on a GPU starts
    its gradient buckets from such threads.
    """
    token = _requested.set(True)
    try:
        yield
    finally:
        _requested.reset(token)


def exact_requested() -> bool:
    """Whether the caller is inside :func:`exact`."""
    return _requested.get()
