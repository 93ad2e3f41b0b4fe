"""An engine whose operations end as a test says, for what Python does before and after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from optireduce import Communicator, Config, attach, transport

DEFAULTS: dict[str, Any] = {
    "elapsed_seconds": 0.25,
    "repaired_bytes": 0,
    "bounded": True,
    "closed_by": "complete",
    "contributions_lost_bytes": 0,
    "reduced_lost_bytes": 0,
    "lost_by_peer": [],
    "absent": [],
    "bound_seconds": 0.0,
    "early_seconds": 0.0,
    "early_fraction": 0.0,
    "incast": 0,
    "window_bytes": 0,
    "rtt_seconds": 0.0,
    "rate_bytes_per_second": 0.0,
    "stood_still_seconds": 0.0,
    "quorum_wait_seconds": 0.0,
    "corrected_bytes": 0,
    "non_finite": [],
    "behind_seconds": 0.0,
    "error_code": 0,
    "error": "",
    "ranks": [],
}


def raw_report(operation: int = 0, size: int = 0, **others: Any) -> Any:
    """What the core reports of an operation."""
    assert others.keys() <= DEFAULTS.keys()
    return SimpleNamespace(operation=operation, bytes=size, **{**DEFAULTS, **others})


class FakeEngine:
    """Every operation is done at once. ``outcome`` is what is reported of it, ``new_events`` what comes with
    the next one."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.outcome: dict[str, Any] = {}
        self.new_events: list[tuple[str, int, int]] = []

    def all_reduce(
        self,
        pointer: int,
        elements: int,
        dtype: int,
        op: int,
        timeout_seconds: float,
        bounded: bool,
        weight: int,
        *,
        stream: int,
        patience_bytes: int,
        repairs: bool,
        slack: float,
        wide: int,
        wide_values: int,
        rounding_seed: int,
    ) -> int:
        self.calls.append(
            SimpleNamespace(elements=elements, bounded=bounded, weight=weight, stream=stream, slack=slack)
        )
        return len(self.calls) - 1

    def wait(self, operation: int, timeout_seconds: float) -> Any:
        return raw_report(operation, self.calls[operation].elements * 4, **self.outcome)

    def events(self) -> list[tuple[str, int, int]]:
        found, self.new_events = self.new_events, []
        return found

    def stats(self) -> dict[str, int | float]:
        return {"operations": len(self.calls)}

    def close(self, linger_seconds: float) -> None:
        pass


def fake_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that groups formed from now on in this test get."""
    engine = FakeEngine()
    monkeypatch.setattr(transport, "connect", lambda *_: (engine, 1, 1))
    return engine


@contextmanager
def fake_session(monkeypatch: pytest.MonkeyPatch, config: Config) -> Iterator[tuple[Any, Any, FakeEngine]]:
    """A small DDP model in a group of one, what attach() made of it, and the fake below."""
    torch = pytest.importorskip("torch")
    engine = fake_engine(monkeypatch)
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        with attach(model, config) as session:
            yield model, session, engine
    finally:
        dist.destroy_process_group()


def fake_group(
    monkeypatch: pytest.MonkeyPatch, config: Config | None = None
) -> tuple[Communicator, FakeEngine]:
    """A communicator, and the fake below it."""
    engine = fake_engine(monkeypatch)
    return Communicator(0, 1, config=config or Config()), engine
