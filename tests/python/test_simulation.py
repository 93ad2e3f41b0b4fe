"""The protocol through the simulator, from Python: whatever the network does, the bits are those of the sum
in rank order, and a seed repeats everything."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optireduce import _core
from optireduce.dtypes import Op
from optireduce.experiments.simulated_network import (
    Background,
    Crash,
    Cut,
    Hostile,
    Link,
    Network,
    Pause,
    Port,
)
from optireduce.experiments.simulation import NEVER, Operation, Simulation

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
OPS = get_args(Op)
TIMEOUT, MISMATCH = 1, 2


def inputs(ranks: int, elements: int, dtype: Any = np.float32, seed: int = 0) -> list[npt.NDArray[Any]]:
    generator = np.random.default_rng([seed, ranks, elements])
    return [generator.standard_normal(elements).astype(dtype) for _ in range(ranks)]


def rank_order(arrays: list[npt.NDArray[Any]], op: str) -> npt.NDArray[Any]:
    """The sum in rank order; half precision is accumulated in float32 and rounded once."""
    dtype = arrays[0].dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = total + array.astype(wide)
    return (total / wide(len(arrays)) if op == "mean" else total).astype(dtype)


def assert_exact(simulation: Simulation, operations: list[Operation]) -> None:
    expected = [rank_order(list(operation.arrays), operation.op).tobytes() for operation in operations]
    reports = simulation.run(operations)
    for operation, row, bits in zip(operations, reports, expected, strict=True):
        assert [report.error for report in row if report] == [""] * len(row)
        assert all(array.tobytes() == bits for array in operation.arrays)


links = st.builds(
    Link,
    bits_per_second=st.sampled_from([0.0, 1e8, 1e10]),
    delay_seconds=st.floats(0, 1e-3),
    jitter_seconds=st.floats(0, 1e-3),
    loss=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    reorder=st.floats(0, 0.2),
    duplicate=st.floats(0, 0.2),
    queue_bytes=st.sampled_from([0, 100_000]),
)


some = st.floats(0, 0.3)
hostiles = st.one_of(
    st.just(Hostile()), st.builds(Hostile, forge=some, truncate=some, mangle=some, replay=some)
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    ranks = draw(st.integers(1, 8))
    pauses = draw(
        st.lists(st.tuples(st.integers(0, ranks - 1), st.floats(0, 0.01), st.floats(0, 0.1)), max_size=2)
    )
    return Network(
        ranks=ranks,
        seed=draw(st.integers(0, 2**63)),
        link=draw(links),
        pauses=[Pause(rank, begin, begin + length) for rank, begin, length in pauses],
        hostile=draw(hostiles),
        coalesce=draw(st.floats(0, 1)),
        wake_seconds=draw(st.sampled_from([0.0, 1e-3])),
        payload_bytes=draw(st.sampled_from([64, 1408, 65_408])),
        window_bytes=draw(st.sampled_from([1, 10_000, 256 * 1024])),
        early_bytes=draw(st.sampled_from([0, 50_000, 1 << 26])),
    )


@given(network=networks(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_network_gives_the_rank_order_sum(network: Network, data: st.DataObject) -> None:
    starts = [0.0] * network.ranks
    operations = []
    for number in range(data.draw(st.integers(1, 4))):
        starts = [start + data.draw(st.floats(0, 2e-3)) for start in starts]
        elements = data.draw(st.integers(0, 5_000))
        dtype = data.draw(st.sampled_from(DTYPES))
        op = data.draw(st.sampled_from(OPS))
        operations.append(Operation(inputs(network.ranks, elements, dtype, number), op, starts))
    assert_exact(Simulation(network), operations)


def test_strangers_are_counted_and_change_nothing() -> None:
    simulation = Simulation(Network(3, hostile=Hostile(forge=1.0)))
    assert_exact(simulation, [Operation(inputs(3, 5_000), "sum")])
    assert simulation.settle()  # some are still on their way
    forged = sum(simulation.stats(rank)["forged_packets"] for rank in range(3))
    assert forged == simulation.counters()["hostile"] > 0


@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(ranks: int, dtype: Any) -> None:
    simulation = Simulation(Network(ranks))
    assert_exact(simulation, [Operation(inputs(ranks, 10_007, dtype), op) for op in OPS])


def test_megabytes() -> None:
    assert_exact(Simulation(Network(4, link=Link(loss=0.01))), [Operation(inputs(4, 1_500_007), "mean")])


def test_non_contiguous_arrays_are_written_back() -> None:
    whole = [array.reshape(-1, 2) for array in inputs(3, 2_000)]
    before = [array.copy() for array in whole]
    assert_exact(Simulation(Network(3)), [Operation([array[:, 0] for array in whole])])
    assert all((array[:, 1] == old[:, 1]).all() for array, old in zip(whole, before, strict=True))


def trace(seed: int) -> tuple[int, float, dict[str, int]]:
    link = Link(loss=0.1, jitter_seconds=1e-4, duplicate=0.05)
    simulation = Simulation(Network(4, seed=seed, link=link))
    simulation.all_reduce(inputs(4, 20_011))
    return simulation.trace_hash, simulation.now_seconds, simulation.counters()


def test_a_seed_repeats_everything() -> None:
    assert trace(5) == trace(5)
    assert trace(5)[0] != trace(6)[0]


def test_counters_tell_what_happened() -> None:
    simulation = Simulation(Network(4, link=Link(loss=0.1)))
    simulation.all_reduce(inputs(4, 50_021))
    assert simulation.settle()
    counters, stats = simulation.counters(), [simulation.stats(rank) for rank in range(4)]
    assert counters["sent"] == sum(s["packets_sent"] for s in stats)
    assert counters["delivered"] == counters["sent"] - counters["lost"] > 0
    assert sum(s["requests_sent"] for s in stats) > 0
    assert all(s["operations"] == 1 for s in stats)


def test_a_rank_that_never_starts_is_named_by_every_other() -> None:
    simulation = Simulation(Network(4))
    reports = simulation.all_reduce(
        inputs(4, 5_003), start_seconds=[0.0, 0.0, NEVER, 0.0], timeout_seconds=2.0
    )
    assert reports[2] is None
    for report in (reports[0], reports[1], reports[3]):
        assert report is not None
        assert (report.error_code, report.ranks) == (TIMEOUT, [2])
        assert "rank 2" in report.error
        assert 2.0 <= report.elapsed_seconds <= 2.2


def test_a_mismatch_is_named_by_every_rank() -> None:
    arrays = [*inputs(3, 5_003), *inputs(1, 5_002)]
    for report in Simulation(Network(4)).all_reduce(arrays):
        assert report is not None
        assert report.error_code == MISMATCH
        assert 3 in report.ranks
        assert "5003" in report.error
        assert "5002" in report.error


def test_a_straggler_costs_its_own_lateness_only() -> None:
    simulation = Simulation(Network(4))
    reports = simulation.all_reduce(inputs(4, 5_003), start_seconds=[0.0, 0.0, 3.0, 0.0])
    assert all(report is not None and report.error_code == 0 for report in reports)
    assert 3.0 <= simulation.now_seconds < 3.01


def test_links_may_differ_and_fail() -> None:
    network = Network(
        3,
        links={(0, 1): Link(bits_per_second=1e8), (1, 2): Link(delay_seconds=0.02, loss=0.2)},
        cuts=[Cut(2, 0, 0.0, 0.3)],
    )
    simulation = Simulation(network)
    assert_exact(simulation, [Operation(inputs(3, 30_011))])
    assert simulation.now_seconds >= 0.3
    assert simulation.counters()["cut"] > 0


def seconds_of(network: Network, elements: int = 100_000) -> float:
    """Virtual time that one all-reduce takes there."""
    simulation = Simulation(network)
    assert_exact(simulation, [Operation(inputs(network.ranks, elements))])
    return simulation.now_seconds


def test_ports_are_shared_by_all_links_of_a_rank() -> None:
    """Each rank of four sends, and gets, one and a half times the buffer."""
    wire_seconds = 1.5 * 400_000 * 8 / 1e8
    assert seconds_of(Network(4)) < wire_seconds / 10
    assert seconds_of(Network(4, link=Link(bits_per_second=1e8))) < wire_seconds / 2
    for network in (
        Network(4, egress=Port(1e8)),
        Network(4, ingress=Port(1e8)),
        Network(4, other_egress={2: Port(1e8)}),
        Network(4, other_ingress={2: Port(1e8)}),
    ):
        assert wire_seconds < seconds_of(network) < 2 * wire_seconds


def test_a_port_without_room_drops() -> None:
    simulation = Simulation(Network(8, ingress=Port(1e8, queue_bytes=16_384)))
    assert_exact(simulation, [Operation(inputs(8, 100_000))])
    assert simulation.counters()["queue_dropped"] > 0


def test_background_traffic_takes_its_part_of_a_port() -> None:
    network = Network(4, ingress=Port(1e8, queue_bytes=1 << 20))
    busy = replace(network, backgrounds=[Background(1, 0.0, 10.0, 8e7)])
    assert seconds_of(busy, 400_000) > 2 * seconds_of(network, 400_000)
    simulation = Simulation(busy)
    simulation.all_reduce(inputs(4, 100_000))
    assert simulation.counters()["foreign"] > simulation.counters()["foreign_dropped"]


def test_a_crashed_rank_has_no_report_and_is_named() -> None:
    simulation = Simulation(Network(3, crashes=[Crash(1, 0.5)]))
    reports = simulation.all_reduce(inputs(3, 5_003), start_seconds=[0.0, 0.0, 1.0], timeout_seconds=2.0)
    assert reports[1] is None
    assert [(r.error_code, r.ranks) for r in reports if r] == [(TIMEOUT, [1])] * 2
    assert simulation.counters()["crash_dropped"] > 0


def test_every_rank_has_a_clock_of_its_own() -> None:
    """A rank that waits a second for another one says how long that was by its own clock."""
    network = Network(3, clock_drift_ppm={0: 500_000.0}, clock_offset_seconds={1: 1_000.0})
    reports = Simulation(network).all_reduce(inputs(3, 5_003), start_seconds=[0.0, 0.0, 1.0])
    assert [r and r.elapsed_seconds for r in reports[:2]] == pytest.approx([1.5, 1.0], rel=0.01)


def test_links_may_stand_still_for_a_while() -> None:
    link = Link(spike=0.2, spike_seconds=0.1)
    assert seconds_of(Network(4, link=replace(link, spike=0.0))) < 0.1
    assert 0.1 < seconds_of(Network(4, link=link)) < 5.0


def test_an_operation_may_follow_the_one_before() -> None:
    simulation = Simulation(Network(3, link=Link(delay_seconds=0.1)))
    first = Operation(inputs(3, 5_003), start_seconds=[0.0, 0.0, 1.0])
    second = Operation(inputs(3, 5_003), follows_seconds=[0.0, 0.0, 2.0])
    third = Operation(inputs(3, 5_003), follows_seconds=3.0)
    assert_exact(simulation, [first, second, third])
    assert 6.0 < simulation.now_seconds < 7.5


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (Network(0), "ranks"),
        (Network(70_000), "ranks"),
        (Network(2, link=Link(loss=1.5)), "loss"),
        (Network(2, link=Link(delay_seconds=-1.0)), "delay_seconds"),
        (Network(2, payload_bytes=1_400), "payload_bytes"),
        (Network(2, pauses=[Pause(2, 0.0, 1.0)]), "pause"),
        (Network(2, cuts=[Cut(0, 5, 0.0, 1.0)]), "cut"),
        (Network(2, coalesce=-0.1), "coalesce"),
        (Network(2, exclude_at_most=1.5), "exclude_at_most = 1.5"),
        (Network(2, link=Link(spike=-0.1)), "spike"),
        (Network(2, egress=Port(bits_per_second=-1.0)), "egress's bits_per_second"),
        (Network(2, ingress=Port(1e9, queue_bytes=100)), "ingress's queue_bytes"),
        (Network(2, other_egress={1: Port(-1.0)}), "egress of rank 1"),
        (Network(2, other_ingress={2: Port(1e9)}), "ingress port is rank 2"),
        (Network(2, backgrounds=[Background(0, 0.0, 1.0, 1e8)]), "background of rank 0 needs an ingress"),
        (Network(2, crashes=[Crash(2, 0.0)]), "crash"),
        (Network(2, crashes=[Crash(0, -1.0)]), "at_seconds"),
        (Network(2, clock_offset_seconds={0: -1.0}), "offset_seconds"),
        (Network(2, clock_offset_seconds={2: 1.0}), "clock_offset is rank 2"),
        (Network(2, clock_drift_ppm={1: 1e6}), "clock_drift of rank 1"),
        (Network(2, warmup_operations=0), "warmup_operations = 0"),
        (Network(2, bound_percentile=101.0), "bound_percentile = 101"),
        (Network(2, bound_least=2.0, bound_most=1.5), "bound_least = 2"),
        (Network(2, max_lag=0), "max_lag = 0"),
        (Network(2, delivery="none"), "delivery = 'none'"),  # type: ignore[arg-type]
        (Network(2, min_ranks=-1), "min_ranks = -1"),
    ],
)
def test_bad_options_are_named(network: Network, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Simulation(network)


def test_bad_calls_are_named() -> None:
    simulation = Simulation(Network(3))
    with pytest.raises(ValueError, match="2 calls"):
        simulation.all_reduce(inputs(2, 5))
    with pytest.raises(ValueError, match="start_seconds has 1 entries"):
        simulation.all_reduce(inputs(3, 5), start_seconds=[0.0])
    with pytest.raises(ValueError, match="before the one before"):
        simulation.run([Operation(inputs(3, 5), start_seconds=[1.0, 0.0, 0.0]), Operation(inputs(3, 5))])
    with pytest.raises(ValueError, match=r"follows_seconds = 1.0 of the first operation"):
        simulation.run([Operation(inputs(3, 5), follows_seconds=1.0)])
    first = Operation(inputs(3, 5))
    with pytest.raises(ValueError, match="follows_seconds has 2 entries"):
        simulation.run([first, Operation(inputs(3, 5), follows_seconds=[1.0, 2.0])])
    with pytest.raises(ValueError, match="exclude each other"):
        simulation.run([first, Operation(inputs(3, 5), start_seconds=[0.0] * 3, follows_seconds=1.0)])
    with pytest.raises(ValueError, match="weights has 1 entries"):
        simulation.all_reduce(inputs(3, 5), weights=[1])
    with pytest.raises(ValueError, match=r"weights = \[1, 0, 1\] .* no deadline"):
        simulation.all_reduce(inputs(3, 5), "mean", weights=[1, 0, 1], bounded=True, stream=1)
    with pytest.raises(ValueError, match="weight is 65536"):
        simulation.all_reduce(inputs(3, 5), "mean", weights=[1, 65_536, 1])


def test_no_run_is_endless() -> None:
    with pytest.raises(RuntimeError, match="bound_seconds"):
        Simulation(Network(2, link=Link(loss=1.0))).run([Operation(inputs(2, 5))], bound_seconds=1.0)
    with pytest.raises(RuntimeError, match="max_events = 100 "):
        Simulation(Network(2, max_events=100)).all_reduce(inputs(2, 1_000_000))


def test_defaults_are_those_of_the_core() -> None:
    options, network = _core.SimulationOptions(), Network(2)
    assert options.rows == []
    for name, value in vars(network).items():
        if isinstance(value, (int, float)) and name != "groups":  # one row is none
            assert getattr(options, name) == value, name
    for name, value in vars(network.link).items():
        assert getattr(options.link, name) == pytest.approx(value), name
    for port in (options.egress, options.ingress):
        assert {name: getattr(port, name) for name in vars(Port())} == vars(Port())


def test_other_threads_run_meanwhile() -> None:
    finished = threading.Event()
    operations = [Operation(inputs(16, 300_000)) for _ in range(4)]

    def simulate() -> None:
        Simulation(Network(16)).run(operations)
        finished.set()

    thread = threading.Thread(target=simulate)
    thread.start()
    turns = 0
    while not finished.wait(1e-4):
        turns += 1
    thread.join()
    assert turns > 5  # at most one or two if the simulation kept the interpreter's lock
