"""The result must be the same bits on every rank, equal to the sum in rank order, whatever the shape of the
input."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from ranks import LOOPBACK, MemoryStore, free_port, group_results, outcomes, results

from optireduce import (
    ClosedError,
    Communicator,
    Config,
    ConfigError,
    InterfaceError,
    OperationTimeout,
    Report,
)

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def contribution(rank: int, elements: int, dtype: Any, seed: int = 0) -> npt.NDArray[Any]:
    """A rank's own values, over several magnitudes so that the order of addition shows in the bits."""
    generator = np.random.default_rng([seed, rank, elements])
    return (generator.standard_normal(elements) * 10.0 ** generator.integers(-3, 3, elements)).astype(dtype)


def rank_order(size: int, elements: int, dtype: Any, op: str, seed: int = 0) -> npt.NDArray[Any]:
    """What the engine promises: added in rank order, half precision accumulated in float32 and rounded
    once."""
    wide = np.float64 if dtype is np.float64 else np.float32
    total = contribution(0, elements, dtype, seed).astype(wide)
    for rank in range(1, size):
        total = total + contribution(rank, elements, dtype, seed).astype(wide)
    return (total / wide(size) if op == "mean" else total).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bits_equal_the_rank_order_sum(size: int) -> None:
    cases = [
        (elements, dtype, op)
        for elements in (1, 3, 1_000, 70_001)
        for dtype in DTYPES
        for op in ("sum", "mean")
    ]

    def body(communicator: Communicator) -> list[bytes]:
        found = []
        for elements, dtype, op in cases:
            array = contribution(communicator.rank, elements, dtype)
            report = communicator.all_reduce(array, op)  # type: ignore[arg-type]
            assert report.bytes == array.nbytes
            found.append(array.tobytes())
        return found

    for found in group_results(size, body):
        for case, bits in zip(cases, found, strict=True):
            assert bits == rank_order(size, *case).tobytes(), case


def test_large_and_indivisible() -> None:
    elements = 5_000_011

    def body(communicator: Communicator) -> bytes:
        array = contribution(communicator.rank, elements, np.float32)
        communicator.all_reduce(array, "sum")
        return array.tobytes()

    expected = rank_order(3, elements, np.float32, "sum").tobytes()
    assert all(bits == expected for bits in group_results(3, body))


def test_many_in_flight_waited_for_in_any_order() -> None:
    sizes = [1, 50_000, 7, 200_003, 1_024, 33]

    def body(communicator: Communicator) -> list[bytes]:
        arrays = [contribution(communicator.rank, n, np.float32, seed) for seed, n in enumerate(sizes)]
        handles = [communicator.all_reduce_async(array) for array in arrays]
        order = reversed(handles) if communicator.rank else handles
        numbers = {handle.wait(100.0).operation for handle in order}
        assert len(numbers) == len(sizes)
        assert all(handle.done() for handle in handles)
        return [array.tobytes() for array in arrays]

    expected = [rank_order(3, n, np.float32, "mean", seed).tobytes() for seed, n in enumerate(sizes)]
    assert group_results(3, body) == [expected] * 3


def test_a_handle_nobody_waits_for() -> None:
    """The engine writes to the array until the operation is done, so the array must outlive its last
    reference."""

    def body(communicator: Communicator) -> bytes:
        for _ in range(20):
            communicator.all_reduce_async(np.ones(100_000, np.float32))
        last = np.ones(10, np.float32)
        communicator.all_reduce(last, "sum")
        return last.tobytes()

    assert group_results(2, body) == [np.full(10, 2, np.float32).tobytes()] * 2


def test_non_contiguous_is_written_back_in_place() -> None:
    def body(communicator: Communicator) -> npt.NDArray[Any]:
        whole = np.zeros((50, 40), np.float32)
        part = whole[::2, 1::3]
        part[...] = contribution(communicator.rank, part.size, np.float32).reshape(part.shape)
        communicator.all_reduce(part, "sum")
        return whole

    expected = np.zeros((50, 40), np.float32)
    expected[::2, 1::3] = rank_order(2, 25 * 13, np.float32, "sum").reshape(25, 13)
    for whole in group_results(2, body):
        np.testing.assert_array_equal(whole, expected)


def test_ranks_may_differ_in_contiguity() -> None:
    def body(communicator: Communicator) -> bytes:
        array = np.ones((8, 8), np.float64)
        array = array.T if communicator.rank else array
        communicator.all_reduce(
            array[:, :5] if communicator.rank else np.ascontiguousarray(array[:, :5]), "sum"
        )
        return array.tobytes() if communicator.rank == 0 else array[:, :5].tobytes()

    assert group_results(2, body)[1] == np.full((8, 5), 2.0).tobytes()


def test_torch_tensors_through_dlpack() -> None:
    torch = pytest.importorskip("torch")

    def body(communicator: Communicator) -> Any:
        tensor = torch.full((3, 5), float(communicator.rank + 1), dtype=torch.bfloat16)
        communicator.all_reduce(tensor.t())
        return tensor

    for tensor in group_results(2, body):
        assert torch.equal(tensor, torch.full((3, 5), 1.5, dtype=torch.bfloat16))


def test_empty_is_no_operation() -> None:
    def body(communicator: Communicator) -> int:
        assert communicator.all_reduce(np.empty(0, np.float32)) == Report(-1, 0, 0.0)
        array = np.ones(3, np.float32)
        return communicator.all_reduce(array).operation

    first, second = group_results(2, body)
    assert first == second


def test_stats_count() -> None:
    def body(communicator: Communicator) -> tuple[Any, Any]:
        for _ in range(3):
            communicator.all_reduce(np.ones(1_000, np.float32))
        stats = communicator.stats()
        return stats["operations"], stats["bucket_bytes"]

    assert group_results(2, body) == [(3, 12_000)] * 2


def test_two_groups_share_a_store() -> None:
    store = MemoryStore()

    def body(rank: int) -> list[float]:
        found = []
        with (
            Communicator(rank, 2, store, LOOPBACK, name="a") as a,
            Communicator(rank, 2, store, LOOPBACK, name="b") as b,
        ):
            for group, value in ((a, 1.0), (b, 5.0)):
                array = np.full(4, value, np.float32)
                group.all_reduce(array, "sum")
                found.append(float(array[0]))
        return found

    assert results(2, body) == [[2.0, 10.0]] * 2


def test_address_as_store_and_again_on_the_same_port() -> None:
    port = free_port()

    def body(rank: int) -> float:
        with Communicator(rank, 3, f"127.0.0.1:{port}", LOOPBACK) as group:
            array = np.full(4, rank, np.float32)
            group.all_reduce(array, "sum")
            return float(array[0])

    assert results(3, body) == [3.0] * 3
    assert results(3, body) == [3.0] * 3


def test_group_after_group_at_one_address() -> None:
    """A rank that has formed one must not look for the next in the store of the last."""
    port = free_port()

    def body(rank: int) -> int:
        for _ in range(20):
            Communicator(rank, 3, f"127.0.0.1:{port}", LOOPBACK).close()
        return rank

    assert results(3, body) == [0, 1, 2]


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6_loopback(), reason="this host has no IPv6 loopback")
def test_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]

    def body(rank: int) -> float:
        config = replace(LOOPBACK, interface="")
        with Communicator(rank, 2, f"[::1]:{port}", config) as group:
            array = np.full(50_000, rank + 1, np.float32)
            group.all_reduce(array, "sum")
            return float(array[-1])

    assert results(2, body) == [3.0] * 2


def test_wait_with_a_timeout_does_not_end_the_operation() -> None:
    gate = MemoryStore()

    def body(communicator: Communicator) -> float:
        array = np.ones(10, np.float32)
        if communicator.rank == 1:
            gate.get("rank 0 has waited")
        handle = communicator.all_reduce_async(array, "sum")
        if communicator.rank == 0:
            with pytest.raises(OperationTimeout, match="goes on"):
                handle.wait(0.05)
            assert not handle.done()
            gate.set("rank 0 has waited", b"")
        handle.wait()
        return float(array[0])

    assert group_results(2, body) == [2.0, 2.0]


def test_closed() -> None:
    communicator = Communicator(0, 1, config=LOOPBACK)
    communicator.close()
    communicator.close()
    with pytest.raises(ClosedError):
        communicator.all_reduce(np.ones(3, np.float32))


def test_close_fails_what_is_in_flight() -> None:
    def body(communicator: Communicator) -> None:
        if communicator.rank == 0:
            handle = communicator.all_reduce_async(np.ones(10, np.float32))
            communicator.close()
            with pytest.raises(ClosedError):
                handle.wait(100.0)

    group_results(2, body)


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (2, 2), (-1, 2)])
def test_bad_rank_or_size(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"rank = {rank}, size = {size}"):
        Communicator(rank, size, MemoryStore())


@pytest.mark.parametrize("address", ["nowhere", "host:", ":123", "host:99999999", "host:x"])
def test_bad_address(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Communicator(0, 2, address)


def test_no_store() -> None:
    with pytest.raises(ConfigError, match="store = None"):
        Communicator(0, 2)


def test_bad_op() -> None:
    with (
        Communicator(0, 1, config=LOOPBACK) as group,
        pytest.raises(ValueError, match=r"'max' is not supported.*'sum', 'mean'"),
    ):
        group.all_reduce(np.ones(3, np.float32), "max")  # type: ignore[arg-type]


def test_bad_interface_on_one_rank_fails_all_at_once() -> None:
    store = MemoryStore()
    configs = [LOOPBACK, Config(interface="eth99", timeout_seconds=60.0)]
    first, second = outcomes(2, lambda rank: Communicator(rank, 2, store, configs[rank]))
    assert isinstance(second, InterfaceError)
    assert "rank 1: InterfaceError" in str(first)


def test_needs_no_torch() -> None:
    code = (
        "import sys, numpy as np, optireduce as o;"
        "c = o.Communicator(0, 1); c.all_reduce(np.ones(3, np.float32)); c.close();"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
