"""The promise that an all-reduce is exact, whatever the group's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_requested: ContextVar[bool] = ContextVar("optireduce_exact", default=False)


@contextmanager
def exact() -> Iterator[None]:
    """All-reduces started inside run to completion and lose nothing.

    Today all of them do, so there is nothing to switch: code that needs exact results (metrics, parameter
    averaging) can say so now and stay right when operations with a deadline arrive.
    """
    token = _requested.set(True)
    try:
        yield
    finally:
        _requested.reset(token)


def exact_requested() -> bool:
    """Whether the caller is inside :func:`exact`."""
    return _requested.get()
