"""An engine whose operations end as a test says, for what Python does before and after them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from optireduce import Communicator, Config, attach, connect, transport

DEFAULTS: dict[str, Any] = {
    "elapsed_seconds": 0.25,
    "stood_still_seconds": 0.0,
    "repaired_bytes": 0,
    "bounded": True,
    "closed_by": "complete",
    "view": 0,
    "members": [0],
    "excluded": [],
    "void_bytes": 0,
    "carried_bytes": 0,
    "residual_bytes": 0,
    "dropped_bytes": 0,
    "oldest_steps": 0,
    "non_finite": [],
    "waited_for": None,
    "waited_seconds": 0.0,
    "behind_seconds": 0.0,
    "deadline_seconds": 0.0,
    "usual_seconds": 0.0,
    "incast": 0,
    "window_bytes": 0,
    "rtt_seconds": 0.0,
    "bytes_per_second": 0.0,
    "lost_contribution_bytes": 0,
    "lost_decision_bytes": 0,
    "holes": [],
    "early_seconds": 0.0,
    "early_fraction": 0.0,
    "error_code": 0,
    "error": "",
    "ranks": [],
}


def raw_report(operation: int = 0, size: int = 0, **others: Any) -> Any:
    """What the core reports of an operation."""
    assert others.keys() <= DEFAULTS.keys()
    return SimpleNamespace(operation=operation, bytes=size, **{**DEFAULTS, **others})


class FakeEngine:
    """Every operation of a group of one is done at once. ``outcome`` is what is reported of it, ``failing``
    what is reported instead of operations by number, whose buffers are spoiled. ``new_events`` comes with
    the next one, ``residuals`` is kept for each stream."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.outcome: dict[str, Any] = {}
        self.failing: dict[int, dict[str, Any]] = {}
        self.new_events: list[tuple[str, int, int, int]] = []
        self.residuals: dict[int, np.ndarray[Any, Any]] = {}
        self.releases = 0
        self.fixed_membership: bool | None = None
        self.restored: list[tuple[int, int, int]] = []
        self.hashes: dict[int, int] = {}
        self.settled: list[tuple[int, list[tuple[int, int]]]] = []
        self.steps_behind: int | None = None  # one operation each; None: it is a member
        self.gave_up = 0

    def all_reduce(
        self,
        pointer: int,
        elements: int,
        dtype: int,
        op: int,
        timeout_seconds: float,
        *,
        bounded: bool,
        weight: int,
        stream: int,
        step: int,
        scale: float,
        stays_readable: bool,
        wide: int,
        wide_values: int,
        rounding_seed: int,
    ) -> int:
        sizes = (4, 8, 2, 2, 64)
        call = SimpleNamespace(
            pointer=pointer,
            elements=elements,
            dtype=dtype,
            bounded=bounded,
            weight=weight,
            stream=stream,
            step=step,
            scale=scale,
            stays_readable=stays_readable,
            releases=self.releases,
            contribution=ctypes.string_at(pointer, elements * sizes[dtype]),
        )
        self.calls.append(call)
        return len(self.calls) - 1

    def wait(self, operation: int, timeout_seconds: float) -> Any:
        call = self.calls[operation]
        if operation in self.failing:
            ctypes.memset(call.pointer, 0xFF, len(call.contribution))
        return raw_report(operation, call.elements * 4, **self.failing.get(operation, self.outcome))

    def release(self) -> None:
        self.releases += 1

    def take_residual(self, stream: int) -> tuple[int, float, bytes]:
        return 0, 1.0, self.residuals.pop(stream, np.empty(0, np.float32)).tobytes()

    def events(self) -> list[tuple[str, int, int, int]]:
        found, self.new_events = self.new_events, []
        return found

    def position(self) -> tuple[int, int]:
        return len(self.calls), 4711

    def behind(self) -> int | None:
        return self.steps_behind

    def give_up_replay(self) -> bool:
        self.gave_up += 1
        return self.steps_behind is not None

    def restore(self, completed: int, digest: int, step: int) -> None:
        self.restored.append((completed, digest, step))

    def check(self, step: int, hash: int) -> list[tuple[int, list[tuple[int, int]]]]:
        self.hashes[step] = hash
        found, self.settled = self.settled, []
        return found

    def stats(self) -> dict[str, int | float]:
        return {"operations": len(self.calls)}

    def close(self, linger_seconds: float) -> None:
        pass


def fake_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that groups formed from now on in this test get."""
    engine = FakeEngine()

    def connected(*told: Any) -> connect.Connection:
        engine.fixed_membership = told[-1]
        return connect.Connection(cast(Any, engine), 1, 1, ["127.0.0.1"], bytes(16))

    monkeypatch.setattr(transport, "connect", connected)
    return engine


@contextmanager
def fake_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """A Gloo group of one as the world, and the fake below every session in it."""
    torch = pytest.importorskip("torch")
    engine = fake_engine(monkeypatch)
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield engine
    finally:
        dist.destroy_process_group()


@contextmanager
def fake_session(
    monkeypatch: pytest.MonkeyPatch, config: Config | None = None, module: Any = None, **options: Any
) -> Iterator[tuple[Any, Any, FakeEngine]]:
    """A small DDP model in a group of one, what attach() made of it, and the fake below."""
    torch = pytest.importorskip("torch")
    with fake_world(monkeypatch) as engine:
        model = torch.nn.parallel.DistributedDataParallel(module or torch.nn.Linear(8, 8), **options)
        with attach(model, config or Config(interface="lo")) as session:
            yield model, session, engine


def fake_group(
    monkeypatch: pytest.MonkeyPatch, config: Config | None = None
) -> tuple[Communicator, FakeEngine]:
    """A communicator, and the fake below it."""
    engine = fake_engine(monkeypatch)
    return Communicator(0, 1, config=config or Config()), engine
