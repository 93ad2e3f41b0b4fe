"""What every driver of the protocol owes its callers: the same tests over real sockets and over the
simulator, because what holds in one only would be a driver's accident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import results

from optireduce import _core
from optireduce.buffers import as_buffer
from optireduce.dtypes import op_code
from optireduce.experiments.simulated_network import Link, Network
from optireduce.experiments.simulation import NEVER, Simulation

TIMED_OUT, MISMATCHED = 1, 2
MTU = 1500
SECRET = bytes(range(16))

# arrays of each rank (None: the rank does not call) -> each caller's report
AllReduce = Callable[[Sequence[Any]], list[Any]]


def simulated(size: int, loss: float, op: str, timeout_seconds: float) -> AllReduce:
    """N endpoints in virtual time."""
    link = Link(loss=loss, reorder=loss, duplicate=loss, delay_seconds=20e-6)
    simulation = Simulation(Network(ranks=size, seed=3, link=link))

    def all_reduce(arrays: Sequence[Any]) -> list[Any]:
        starts = [NEVER if array is None else 0.0 for array in arrays]
        stand_in = next(array for array in arrays if array is not None)
        given = [stand_in.copy() if array is None else array for array in arrays]
        return list(
            simulation.all_reduce(given, op, start_seconds=starts, timeout_seconds=timeout_seconds)  # type: ignore[arg-type]
        )

    return all_reduce


def over_sockets(size: int, loss: float, op: str, timeout_seconds: float) -> AllReduce:
    """N engines on loopback, a thread each."""
    options = _core.EngineOptions()
    options.drop = options.reorder = options.duplicate = loss
    engines = [_core.Engine(rank, size, "127.0.0.1", "mac", SECRET, options) for rank in range(size)]
    ports = [engine.ports for engine in engines]
    grants = [engine.grant_bytes for engine in engines]
    for rank, engine in enumerate(engines):
        engine.open(["127.0.0.1"] * size, [ports[peer][rank] for peer in range(size)])
    assert results(size, lambda rank: engines[rank].begin(MTU, grants, 100.0)) == [[]] * size

    def begin(rank: int, array: Any) -> int:
        memory = as_buffer(array)
        return engines[rank].all_reduce(
            memory.pointer, memory.elements, memory.dtype.code, op_code(op), timeout_seconds
        )

    def all_reduce(arrays: Sequence[Any]) -> list[Any]:
        # Threads might begin so far apart that one gives up before another is there.
        begun = [None if array is None else begin(rank, array) for rank, array in enumerate(arrays)]

        def end(rank: int) -> Any:
            number = begun[rank]
            return None if number is None else engines[rank].wait(number, -1.0)

        return results(size, end)

    return all_reduce


DRIVERS = [pytest.param(simulated, id="simulator"), pytest.param(over_sockets, id="sockets")]
pytestmark = pytest.mark.parametrize("driver", DRIVERS)


def values(rank: int, elements: int, dtype: Any) -> Any:
    """Magnitudes that make the order of addition visible in the bits."""
    generator = np.random.default_rng([rank, elements])
    return (generator.standard_normal(elements) * 10.0 ** generator.integers(-3, 3, elements)).astype(dtype)


def added_in_rank_order(arrays: Sequence[Any], divisor: int) -> bytes:
    wide = np.float64 if arrays[0].dtype == np.float64 else np.float32
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = total + array.astype(wide)
    return bytes((total / wide(divisor)).astype(arrays[0].dtype).tobytes())


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_has_the_bits_of_the_sum_in_rank_order(driver: Any, size: int, op: str) -> None:
    all_reduce = driver(size, 0.0, op, 120.0)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        for elements in (1, 17, 4_099, 60_001):
            arrays = [values(rank, elements, dtype) for rank in range(size)]
            expected = added_in_rank_order(arrays, size if op == "mean" else 1)
            reports = all_reduce(arrays)
            assert [report.error for report in reports] == [""] * size
            assert {array.tobytes() for array in arrays} == {expected}, (dtype, elements)


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.20])
def test_lost_reordered_and_repeated_packets_change_nothing(driver: Any, loss: float) -> None:
    all_reduce = driver(3, loss, "sum", 120.0)
    for elements in (100, 50_001, 50_001):
        arrays = [values(rank, elements, np.float32) for rank in range(3)]
        expected = added_in_rank_order(arrays, 1)
        assert [report.error for report in all_reduce(arrays)] == [""] * 3
        assert {array.tobytes() for array in arrays} == {expected}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.zeros(1000, np.float32), np.zeros(999, np.float32)),
        (np.zeros(1000, np.float32), np.zeros(1000, np.float64)),
        (np.zeros(1, np.float32), np.zeros(100_000, np.float32)),
    ],
)
def test_ranks_that_disagree_are_told_who_reduces_what(driver: Any, ours: Any, theirs: Any) -> None:
    reports = driver(3, 0.0, "sum", 120.0)([ours.copy(), theirs.copy(), ours.copy()])
    for report in reports:
        assert report.error_code == MISMATCHED
        assert 1 in report.ranks
        assert f"rank 1 reduces {theirs.size} {theirs.dtype} (sum)" in report.error
        assert f"reduces {ours.size} {ours.dtype} (sum)" in report.error


def test_a_rank_that_does_not_come_is_named(driver: Any) -> None:
    reports = driver(4, 0.0, "sum", 3.0)(
        [np.ones(5000, np.float32)] * 2 + [None] + [np.ones(5000, np.float32)]
    )
    assert reports[2] is None
    for rank in (0, 1, 3):
        assert reports[rank].error_code == TIMED_OUT
        assert reports[rank].ranks == [2]
        assert "rank 2" in reports[rank].error
