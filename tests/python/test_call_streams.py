"""All-reduces that name a stream: with ``Config(bounded="all")`` nobody waits for a late rank, and what was
late is in its next call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_engine import fake_group
from ranks import LIMIT_SECONDS, LOOPBACK, ProcessPool, group_results
from torch_ranks import process_group

import optireduce
from optireduce import Communicator, Config, Report
from optireduce.calls import CallStreams
from optireduce.dtypes import DTYPES

ALL = replace(LOOPBACK, bounded="all")
RANKS, LATE = 3, 2
ELEMENTS, OTHERS = 40_000, 20_000  # so many that every rank owns a part, and learns what is usual
WARM_UP = 20  # calls after which owners know what is usual


class Progress:
    """How far the ranks of a test are. A late rank begins only when the others have got their result: if they
    waited for it, the test would end by its timeout."""

    def __init__(self) -> None:
        self._barriers: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._passed: dict[str, int] = {}

    def passed(self, name: str) -> None:
        with self._lock:
            self._passed[name] = self._passed.get(name, 0) + 1
            if self._passed[name] == RANKS - 1:
                self._event(name).set()

    def wait(self, name: str) -> None:
        with self._lock:
            event = self._event(name)
        assert event.wait(LIMIT_SECONDS), f"the others wait for rank {LATE}"

    def _event(self, name: str) -> threading.Event:
        return self._barriers.setdefault(name, threading.Event())


Call = Callable[..., tuple[Any, Report]]


def on_communicators(body: Callable[[int, Call, Progress], Any], config: Config = ALL) -> list[Any]:
    """``body(rank, call, progress)`` on each rank; ``call(value, **options)`` reduces an array of it."""
    progress = Progress()

    def run(communicator: Communicator) -> Any:
        def call(value: float, op: Any = "sum", **options: Any) -> tuple[Any, Report]:
            values = np.full(ELEMENTS, value, np.float32)
            report = communicator.all_reduce(values, op, **options)
            return values, report

        return body(communicator.rank, call, progress)

    return group_results(RANKS, run, config)


def late_call(rank: int, call: Call, progress: Progress, name: str, value: float, **options: Any) -> Any:
    """The same call on all ranks, on one of them when the others have their result."""
    if rank == LATE:
        progress.wait(name)
    found = call(value, **options)
    if rank != LATE:
        progress.passed(name)
    return found


def warm_up(call: Call, **options: Any) -> None:
    for _ in range(WARM_UP):
        call(1.0, **options)
    call(0.0, exact=True, **options)  # nothing is left


def test_what_is_late_is_in_the_next_sum() -> None:
    def body(rank: int, call: Call, progress: Progress) -> Any:
        warm_up(call, stream="gradients")
        first, report = late_call(rank, call, progress, "late", 10.0**rank, stream="gradients")
        second, _ = call(10.0**rank, stream="gradients")
        left, exact = call(0.0, stream="gradients", exact=True)
        return first.tobytes(), (first + second + left).tolist(), report, exact

    found = on_communicators(body)
    for first, total, report, exact in found:
        assert first == found[0][0]
        assert total == [222.0] * ELEMENTS  # every contribution once
        assert report.bounded
        assert report.excluded[LATE] == ELEMENTS * 4
        assert report.excluded == found[0][2].excluded
        assert not exact.bounded
    assert "deadline" in {report.closed_by for _, _, report, _ in found}


def test_an_exact_call_includes_what_is_left() -> None:
    def body(rank: int, call: Call, progress: Progress) -> Any:
        warm_up(call, stream=7)
        first, _ = late_call(rank, call, progress, "late", 10.0**rank, stream=7)
        other, _ = call(0.0, stream=8, exact=True)  # not this one's
        left, _ = call(0.0, stream=7, exact=True)
        nothing, _ = call(0.0, stream=7, exact=True)
        return (first + left).tolist(), left[0] >= 100, other.any(), nothing.any()

    assert on_communicators(body) == [([111.0] * ELEMENTS, True, False, False)] * RANKS


def test_late_samples_are_in_the_next_mean_with_their_weight() -> None:
    def body(rank: int, call: Call, progress: Progress) -> Any:
        options = {"op": "mean", "stream": "samples"}
        warm_up(lambda value, **others: call(value, weight=1, **others), **options)
        weights = [2, 3, 5]
        first, report = late_call(
            rank, call, progress, "late", 100.0 * weights[rank], weight=weights[rank], **options
        )
        second, _ = call(10.0 * rank, weight=(0, 0, 1)[rank], exact=True, **options)
        return first.tolist(), report.excluded, second.tolist()

    for first, excluded, second in on_communicators(body):
        if excluded != {LATE: ELEMENTS * 4}:  # another rank was late, too, on a busy machine
            continue
        assert first == [100.0] * ELEMENTS
        assert second == [np.float32((500 + 20) / 6)] * ELEMENTS
        assert excluded


@pytest.mark.parametrize("bounded", [True, False])
def test_without_all_a_stream_waits_for_everybody(bounded: bool) -> None:
    def body(rank: int, call: Call, progress: Progress) -> Any:
        for _ in range(WARM_UP):
            call(1.0, stream="gradients")
        started = threading.Event()
        if rank == LATE:
            assert not started.wait(0.2)  # long after any deadline
        found, report = call(10.0**rank, stream="gradients")
        return found.tolist(), report.bounded, report.excluded

    config = replace(LOOPBACK, bounded=bounded)
    assert on_communicators(body, config) == [([111.0] * ELEMENTS, False, {})] * RANKS


def test_without_a_stream_everybody_is_awaited() -> None:
    def body(rank: int, call: Call, progress: Progress) -> Any:
        return [(found.tolist(), report.bounded) for found, report in [call(10.0**rank)] * 3]

    assert on_communicators(body) == [[([111.0] * ELEMENTS, False)] * 3] * RANKS


# --- The backend -----------------------------------------------------------------------------------------


def wait_for_others(directory: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not all((Path(directory) / f"done-{rank}").exists() for rank in range(RANKS) if rank != LATE):
        assert time.monotonic() < limit, f"the others wait for rank {LATE}"
        time.sleep(0.01)


def own_gradients(rank: int, size: int, directory: str) -> tuple[list[float], list[float], bool]:
    """A loop that averages its gradients itself, two tensors each step."""
    config = replace(ALL, linger_seconds=30.0)
    with process_group("optireduce", rank, size, directory, config=config) as group:

        def reduce(value: float, exact: bool = False) -> torch.Tensor:
            gradients = [torch.full((ELEMENTS,), value), torch.full((OTHERS,), value, dtype=torch.float64)]
            with optireduce.stream("gradients", exact=exact):
                for gradient in gradients:
                    dist.all_reduce(gradient)
            return torch.cat([gradient.double() for gradient in gradients])

        for _ in range(WARM_UP):
            reduce(1.0)
        reduce(0.0, exact=True)
        before = optireduce.stats()["excluded_bytes"]
        if rank == LATE:
            wait_for_others(directory)
        first = reduce(10.0**rank)
        (Path(directory) / f"done-{rank}").touch()
        was_late = optireduce.stats()["excluded_bytes"] - before >= ELEMENTS * 4
        second = reduce(10.0**rank)
        left = reduce(0.0, exact=True)
        exact = group.all_reduce_async(torch.ones(1), "sum").wait()
        assert not exact.bounded
        return first.tolist(), (first + second + left).tolist(), was_late


def test_a_loop_that_reduces_its_own_gradients(process_pool: ProcessPool, tmp_path: Path) -> None:
    found = process_pool.run(RANKS, own_gradients, str(tmp_path))
    for first, total, _ in found:
        assert first == found[0][0]
        assert total == [222.0] * (ELEMENTS + OTHERS)
    assert found[LATE][2]


# --- What is said ----------------------------------------------------------------------------------------


def test_all_calls_of_a_stream_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, _ = fake_group(monkeypatch, Config(bounded="all"))
    communicator.all_reduce(np.ones(8, np.float32), "sum", stream="a")
    with pytest.raises(ValueError, match=r"stream = 'a' had 8 elements.*has 9 elements"):
        communicator.all_reduce(np.ones(9, np.float32), "sum", stream="a")
    with pytest.raises(ValueError, match=r"8 elements of 4 bytes \(sum.*8 elements of 8 bytes \(sum"):
        communicator.all_reduce(np.ones(8, np.float64), "sum", stream="a")
    with pytest.raises(ValueError, match=r"\(sum.*\(weighted mean"):
        communicator.all_reduce(np.ones(8, np.float32), "mean", weight=3, stream="a")
    communicator.all_reduce(np.ones(9, np.float32), "sum", stream="b")


@pytest.mark.parametrize("stream", [0, -1, 2**31, "", True, 1.5])
def test_streams_that_are_none_are_refused(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch, Config(bounded="all"))
    with pytest.raises((ValueError, TypeError), match=f"stream = {stream!r}"):
        communicator.all_reduce(np.ones(8, np.float32), stream=stream)
    assert not engine.calls


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), "2"])
def test_scales_that_are_none_are_refused(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, _ = fake_group(monkeypatch)
    with pytest.raises(ValueError, match="scale = "):
        communicator.all_reduce(np.ones(8, np.float32), stream=1, scale=scale)


def test_a_step_ends_when_a_stream_comes_again() -> None:
    streams = CallStreams()
    steps = []
    for stream in ("a", "b", "a", "a", "b", "c", "b"):
        streams.enter(stream, 1, DTYPES["float32"], 0)
        steps.append(streams.steps)
    assert steps == [0, 0, 1, 2, 2, 2, 3]


def test_the_engine_hears_the_stream_its_step_and_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch, Config(bounded="all"))
    values = np.ones(8, np.float32)
    for options in ({"stream": 4}, {"stream": 4, "exact": True, "scale": 8.0}, {}):
        communicator.all_reduce(values, "sum", **options)  # type: ignore[arg-type]
    told = [(call.stream, call.bounded, call.step, call.scale) for call in engine.calls]
    assert told == [(4, True, 0, 1.0), (4, False, 1, 8.0), (0, False, 1, 1.0)]


def test_calls_inside_of_a_stream_are_numbered_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from optireduce.calls import options_in_scope

    with optireduce.stream("g", exact=True):
        names = [options_in_scope(group).stream for group in ("x", "x", "y")]
        assert options_in_scope("y").exact
    assert names == ["g/1", "g/2", "g/1"]
    assert options_in_scope("x").stream is None
    with pytest.raises(ValueError, match="name = ''"), optireduce.stream(""):
        pass


def test_best_effort_carries_nothing() -> None:
    with pytest.raises(optireduce.ConfigError, match=r"bounded = 'all' .*True or False with delivery"):
        Config(bounded="all", delivery="best-effort")


def test_all_is_read_from_the_environment() -> None:
    assert Config.from_env({"OPTIREDUCE_BOUNDED": "All"}).bounded == "all"
    assert Config.from_env({"OPTIREDUCE_BOUNDED": "no"}).bounded is False
    with pytest.raises(optireduce.ConfigError, match=r"must be one of 1, 0, true, false, all"):
        Config.from_env({"OPTIREDUCE_BOUNDED": "some"})
