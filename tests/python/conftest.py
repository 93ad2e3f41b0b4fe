"""Ranks for the tests: threads for what needs no torch, a few long-lived processes for what does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ranks import ProcessPool


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """Importing torch costs seconds, so the same processes serve all tests."""
    pool = ProcessPool()
    yield pool
    pool.close()


@pytest.fixture
def on_ranks(process_pool: ProcessPool, tmp_path: Any) -> Callable[..., list[Any]]:
    """``on_ranks(size, function, *args)``: ``function(rank, size, directory, *args)`` in every process; the
    results."""

    def run(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        return process_pool.run(size, function, str(tmp_path), *args)

    return run


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPTIREDUCE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OPTIREDUCE_INTERFACE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
