"""The benchmark's arithmetic, on numbers small enough to check by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optireduce.cli.bench.plan import Block, Plan, Verified
from optireduce.cli.bench.statistics import (
    Spread,
    bus_bandwidth,
    limit_seconds,
    moved_bytes,
    percentile,
    ratio_by_round,
    spread,
    summarize,
)


def block(
    backend: str,
    round_index: int,
    *seconds: float,
    cpu: float = 1.0,
    drops: int | None = None,
    size: int = 1000,
) -> Block:
    return Block(backend, size, round_index, seconds, cpu, drops)


def test_percentile_is_a_value_that_occurred() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_at_least_the_share_of_values_is_no_larger(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


@pytest.mark.parametrize(("nproc", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_nccl_tests(nproc: int, factor: float) -> None:
    assert bus_bandwidth(10.0, nproc) == pytest.approx(10 * factor)


def test_all_ranks_together_move_twice_n_minus_one_sizes() -> None:
    assert moved_bytes(2, 100) == 200
    assert moved_bytes(8, 100) == 1400


def test_the_limit_counts_flows_by_the_cores_that_the_ranks_can_use() -> None:
    assert limit_seconds(4, 1000, 6000.0, cores=1) == pytest.approx(1.0)
    assert limit_seconds(4, 1000, 6000.0, cores=2) == pytest.approx(1.0)
    assert limit_seconds(4, 1000, 6000.0, cores=4) == pytest.approx(0.5)
    assert limit_seconds(4, 1000, 6000.0, cores=64) == pytest.approx(0.5)


def test_ratios_compare_only_blocks_of_the_same_round() -> None:
    first = [block("a", 0, 4.0, 4.0), block("a", 1, 40.0), block("a", 2, 9.0)]
    other = [block("b", 2, 3.0), block("b", 0, 2.0), block("b", 1, 10.0)]
    assert ratio_by_round(first, other) == Spread(median=3.0, lowest=2.0, highest=4.0)


def test_spread_of_one_value() -> None:
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0)


def test_rows_come_by_size_then_backend_and_hold_the_right_blocks() -> None:
    records: list[Block | Verified] = [
        Verified("b", 1000, 3),
        Verified("a", 1000, 0),
        block("a", 0, 2.0, 4.0, cpu=1.0),
        block("b", 0, 1.0, 1.0, cpu=0.5, drops=2),
        block("b", 1, 1.0, 3.0, cpu=0.5, drops=1),
        block("a", 1, 3.0, 3.0, cpu=1.0),
        Verified("a", 2000, 0),
        Verified("b", 2000, 0),
        block("a", 0, 8.0, size=2000),
        block("b", 0, 4.0, size=2000),
    ]
    rows = summarize(4, ("a", "b"), records, flow_bytes_per_second=6000.0, cores=2)
    assert [(row.size, row.backend) for row in rows] == [(1000, "a"), (1000, "b"), (2000, "a"), (2000, "b")]
    a, b = rows[:2]
    assert (a.p50, a.p99, a.iterations, a.wrong, a.socket_drops) == (3.0, 4.0, 4, 0, None)
    assert (b.p50, b.p99, b.wrong, b.socket_drops) == (1.0, 3.0, 3, 3)
    assert a.ratio == Spread(1.0, 1.0, 1.0)
    assert b.ratio == Spread(2.25, 1.5, 3.0)
    assert a.algbw == pytest.approx(1000 / 3)
    assert a.busbw == pytest.approx(1000 / 3 * 1.5)
    assert a.limit_share == pytest.approx(1 / 3)
    assert a.cpu_seconds_per_gb == pytest.approx(2.0 / (4 * 6000 / 1e9))


def plan(iterations: int | None = None, backends: tuple[str, ...] = ("a", "b", "c")) -> Plan:
    return Plan(
        backends,
        (1000, 2000),
        "float32",
        rounds=3,
        warmup=0,
        iterations=iterations,
        receive_buffer_bytes=None,
    )


def test_large_sizes_get_fewer_iterations_within_bounds() -> None:
    assert plan().iterations_for(4096, 2) == 50
    assert plan().iterations_for(25 << 20, 2) == 10
    assert plan().iterations_for(1 << 30, 8) == 4
    assert plan(iterations=7).iterations_for(1 << 30, 8) == 7


def test_every_backend_has_every_turn_in_some_round() -> None:
    assert [plan().order_in(r) for r in range(3)] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]


def test_the_progress_bar_counts_every_record() -> None:
    assert plan().steps() == 2 * 3 * (1 + 3)
