"""Operations with a deadline through the simulator, from Python: the settings arrive, and whatever happens
every value is the mean of exactly the contributions that the reports do not call missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optireduce import _core
from optireduce.simulation import Background, Crash, Doom, Link, Network, Operation, Port, Simulation
from optireduce.trials.soak.values import contribution, contributors

RANKS = 4
ELEMENTS = 64 * 1024  # a multiple of what shards are aligned to: each is a quarter
GIGABIT = Network(
    RANKS, egress=Port(1e9), ingress=Port(1e9, queue_bytes=256 * 1024), warmup_operations=5, absent_after=3
)
TOO_FEW = 4
Reports = list[list[_core.Report | None]]


def loop(count: int, first_start: float = 0.0, **options: Any) -> list[Operation]:
    """As in training: every rank starts the next operation a millisecond after the end of the one before."""
    when: list[dict[str, Any]] = [{"start_seconds": [first_start] * RANKS}] + [
        {"follows_seconds": 1e-3}
    ] * count
    return [
        Operation(
            [contribution(rank, ELEMENTS) for rank in range(RANKS)], "mean", bounded=True, **start, **options
        )
        for start in when[:count]
    ]


def reports_of(reports: Reports) -> Iterator[_core.Report]:
    return (report for row in reports for report in row if report is not None)


def lost_bytes(reports: Reports) -> int:
    return sum(report.lost_bytes for report in reports_of(reports))


def missing(report: _core.Report | None, stage: str, peer: int) -> Any:
    """Which elements of the bucket are in holes."""
    found = np.zeros(ELEMENTS, bool)
    for hole_stage, hole_peer, begin, size in report.holes if report else ():
        if (hole_stage, hole_peer) == (stage, peer):
            found[begin // 4 : (begin + size) // 4] = True
    return found


def assert_right(operation: Operation, row: list[_core.Report | None]) -> None:
    """Every value of every rank is the mean of those whom the owner's report does not miss, or zero where
    the rank's own report says so."""
    shard = ELEMENTS // RANKS
    for rank, mine in enumerate(row):
        if mine is None:
            continue
        got = contributors(operation.arrays[rank], RANKS)
        for owner, report in enumerate(row):
            index = (owner - mine.operation) % RANKS
            part = slice(index * shard, (index + 1) * shard)
            values = got[part]
            lost = missing(mine, "reduced", owner)[part]
            assert ((values == 0) == lost).all(), (mine.operation, rank, owner)
            if report is None:
                continue
            expected = np.zeros(shard, np.int64)
            for peer in range(RANKS):
                expected |= np.where(missing(report, "contribution", peer)[part], 0, 1 << peer)
            assert (values == expected)[~lost].all(), (mine.operation, rank, owner)


def test_a_quiet_network_loses_nothing() -> None:
    operations = loop(12)
    reports = Simulation(GIGABIT).run(operations)
    assert lost_bytes(reports) == 0
    assert {report.closed_by for report in reports_of(reports)} == {"complete"}
    assert all((array == operations[0].arrays[0]).all() for o in operations for array in o.arrays)
    for number, row in enumerate(reports):
        for report in row:
            assert report is not None
            assert report.bounded == (number >= GIGABIT.warmup_operations)
            assert (report.bound_seconds > 0) == report.bounded
            assert report.holes == []


def test_a_crashed_rank_is_waited_for_a_few_times_only() -> None:
    simulation = Simulation(replace(GIGABIT, crashes=[Crash(3, 1.001)]))
    warm = simulation.run(loop(8))
    assert simulation.now_seconds < 1.0
    operations = loop(12, first_start=1.0 - simulation.now_seconds)
    reports = simulation.run(operations)
    for operation, row in zip(operations, reports, strict=True):
        assert row[3] is None
        assert_right(operation, row)
        assert all(r.elapsed_seconds <= r.bound_seconds for r in row[:3] if r is not None)
    usual, last = warm[-1][0], reports[-1][:3]
    assert usual is not None
    assert lost_bytes(warm) == 0
    for report in last:
        assert report is not None
        assert report.absent == [3]
        assert report.contributions_lost_bytes == 0
        assert report.reduced_lost_bytes == report.bytes // RANKS  # the shard that nobody reduces
        assert report.elapsed_seconds < 2 * usual.elapsed_seconds
    assert sum(row[0] is not None and row[0].closed_by == "deadline" for row in reports) <= 4
    assert simulation.stats(0)["absences"] == 1
    assert simulation.counters()["crash_dropped"] > 0


def test_fewer_than_min_ranks_is_an_error_in_the_report() -> None:
    simulation = Simulation(replace(GIGABIT, crashes=[Crash(0, 1.0)], min_ranks=RANKS))
    simulation.run(loop(8))
    last = simulation.run(loop(8, first_start=1.0 - simulation.now_seconds))[-1][1]
    assert last is not None
    assert (last.error_code, last.ranks) == (TOO_FEW, [0])
    assert last.quorum_wait_seconds == 30.0


def test_too_few_ranks_are_waited_for_as_long_as_quorum_seconds_says() -> None:
    simulation = Simulation(replace(GIGABIT, crashes=[Crash(0, 1.0)], min_ranks=RANKS, quorum_seconds=2.0))
    simulation.run(loop(8))
    last = simulation.run(loop(8, first_start=1.0 - simulation.now_seconds))[-1][1]
    assert last is not None
    assert last.quorum_wait_seconds == last.elapsed_seconds == 2.0


def test_absent_after_says_how_often_a_rank_is_waited_for() -> None:
    def first_without(absent_after: int) -> int:
        simulation = Simulation(replace(GIGABIT, crashes=[Crash(3, 1.0)], absent_after=absent_after))
        simulation.run(loop(8))
        reports = simulation.run(loop(12, first_start=1.0 - simulation.now_seconds))
        return [row[0] is not None and row[0].absent for row in reports].index([3])

    assert first_without(6) == first_without(2) + 4


def test_the_bound_follows_a_slower_network() -> None:
    """From 20 s on others use half of every port."""
    port = Port(2e8, queue_bytes=256 * 1024)
    network = replace(
        GIGABIT,
        egress=port,
        ingress=port,
        coalesce=1.0,
        backgrounds=[Background(rank, 20.0, 1e6, 1e8) for rank in range(RANKS)],
    )
    simulation = Simulation(network)
    before = simulation.run(loop(60))
    assert simulation.now_seconds < 20.0
    operations = loop(120, first_start=20.001 - simulation.now_seconds)
    after = simulation.run(operations)
    assert before[-1][0] is not None
    assert after[-1][0] is not None
    assert lost_bytes(before) == 0
    # The bound is the usual time and some slack: it must follow the former.
    usual = [run[-1][0].early_seconds for run in (before, after)]  # type: ignore[union-attr]
    assert usual[1] > 1.4 * usual[0]
    assert after[-1][0].bound_seconds - before[-1][0].bound_seconds > 0.8 * (usual[1] - usual[0])
    assert all(r.elapsed_seconds <= r.bound_seconds for r in reports_of(after))
    for operation, row in zip(operations, after, strict=True):
        assert_right(operation, row)
    assert simulation.counters()["foreign"] > 0


@pytest.mark.parametrize("bounded", [False, True])
def test_weights_make_a_weighted_mean(bounded: bool) -> None:
    simulation = Simulation(GIGABIT)
    for number in range(8):
        arrays = [np.full(ELEMENTS, value, np.float32) for value in (6.0, 1.0, 5.0, 8.0)]
        reports = simulation.all_reduce(arrays, "mean", bounded=bounded, weights=[3, 1, 2, 4])
        with_deadline = bounded and number >= GIGABIT.warmup_operations
        assert all(report is not None and report.bounded == with_deadline for report in reports)
        assert all((array == 2.0).all() for array in arrays)


def test_a_rank_with_weight_0_gives_nothing_and_gets_the_result() -> None:
    simulation = Simulation(GIGABIT)
    simulation.run(loop(8))
    arrays = [contribution(rank, ELEMENTS) for rank in range(RANKS)]
    reports = simulation.all_reduce(arrays, "mean", bounded=True, weights=[1, 1, 1, 0])
    assert lost_bytes([reports]) == 0
    assert all((contributors(array, RANKS) == 0b0111).all() for array in arrays)


def test_repair_is_switched_off() -> None:
    network = replace(GIGABIT, link=Link(loss=0.02), ingress=Port())
    for repair in (True, False):
        operations = loop(20)
        simulation = Simulation(replace(network, repair=repair))
        reports = simulation.run(operations)
        warm, rest = reports[: network.warmup_operations], reports[network.warmup_operations :]
        assert lost_bytes(warm) == 0
        assert (lost_bytes(rest) == 0) == repair
        assert {r.repaired_bytes > 0 for row in rest for r in row if r} <= {repair, False}
        for operation, row in zip(operations, reports, strict=True):
            assert_right(operation, row)


def test_bound_settings_shape_the_bound() -> None:
    """A third of a second each, so that the slack for schedulers does not matter."""
    slow = replace(GIGABIT, egress=Port(1e7), ingress=Port())

    def bound_over_usual(**settings: Any) -> float:
        last = Simulation(replace(slow, **settings)).run(loop(12))[-1][0]
        assert last is not None
        return last.bound_seconds / last.elapsed_seconds

    assert bound_over_usual(bound_least=2.0, bound_most=2.0) == pytest.approx(2.0, rel=0.1)
    assert bound_over_usual(bound_least=3.0, bound_most=9.0, bound_percentile=50.0) == pytest.approx(
        3.0, rel=0.1
    )


def test_storms_hit_few_ranks_hard() -> None:
    """A share of 2 % on average: of each operation's ranks a tenth lose a fifth of what they wait for."""
    storms = replace(GIGABIT, payload_bytes=256, doom=Doom("storms", 0.02, "everything"))
    reports = Simulation(storms).run(loop(65))[5:]  # without the warm-up
    shares = np.array([report.reduced_lost_bytes / (report.bytes * 3 / 4) for report in reports_of(reports)])
    struck = shares > 0.1
    assert 0.04 < struck.mean() < 0.2
    assert 0.12 < shares[struck].mean() < 0.28
    assert shares[~struck].mean() < 0.005


def test_what_is_lost_at_the_very_end_is_soon_repaired() -> None:
    """Nothing comes after it that would show that it is lost."""
    port = {"egress": Port(2e8), "ingress": Port(2e8, queue_bytes=256 * 1024)}
    simulation = Simulation(
        Network(RANKS, seed=5, link=Link(loss=0.01), coalesce=1.0, wake_seconds=2e-4, **port)
    )
    arrays = [np.zeros(1024 * 1024, np.float32) for _ in range(RANKS)]
    seconds = []
    for _ in range(150):
        reports = simulation.all_reduce(arrays, "mean", bounded=True)
        seconds.append(max(report.elapsed_seconds for report in reports if report is not None))
    usual, slow = np.percentile(seconds[25:], [50, 95])
    assert slow < 1.05 * usual
