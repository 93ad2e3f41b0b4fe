"""Operations with a deadline through the simulator, from Python: the settings arrive, every member gets the
same bits, and every contribution counts exactly once. Best effort: every value is the mean of exactly the
contributions that the reports do not call missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from optireduce import _core
from optireduce.experiments.simulated_network import Background, Crash, ForcedLoss, Link, Network, Pause, Port
from optireduce.experiments.simulation import Operation, Simulation

RANKS = 4
ELEMENTS = 64 * 1024  # a multiple of what shards are aligned to: each is a quarter
GIGABIT = Network(RANKS, egress=Port(1e9), ingress=Port(1e9, queue_bytes=256 * 1024))
BEST_EFFORT = replace(GIGABIT, delivery="best-effort", warmup_operations=5)
STREAM = 1
TOO_FEW = 4
Reports = list[list[_core.Report | None]]
Floats = npt.NDArray[np.float32]


def contribution(rank: int, step: int = 0) -> Floats:
    """Small integers, so that sums are exact; rank r's are 2^r times those of rank 0."""
    return ((1 + (np.arange(ELEMENTS) + step) % 7) * 2**rank).astype(np.float32)


def loop(
    count: int,
    first_step: int = 0,
    first_start: float = 0.0,
    late: Sequence[float] | None = None,
    **options: Any,
) -> list[Operation]:
    """As in training: every rank starts the next operation a millisecond after the end of the one before.
    ``late``: by how much more, of each rank."""
    follows = [1e-3 + more for more in late or [0.0] * RANKS]
    when: list[dict[str, Any]] = [{"start_seconds": [first_start] * RANKS}] + [
        {"follows_seconds": follows}
    ] * count
    return [
        Operation(
            [contribution(rank, first_step + index) for rank in range(RANKS)],
            "mean",
            bounded=True,
            stream=STREAM,
            step=first_step + index,
            **start,
            **options,
        )
        for index, start in enumerate(when[:count])
    ]


def reports_of(reports: Reports) -> Iterator[_core.Report]:
    return (report for row in reports for report in row if report is not None)


def excluded_bytes(reports: Reports) -> int:
    return sum(count for report in reports_of(reports) for _rank, count in report.excluded)


def lost_bytes(reports: Reports) -> int:
    return sum(r.lost_contribution_bytes + r.lost_decision_bytes for r in reports_of(reports))


def assert_equal(operations: Sequence[Operation], reports: Reports) -> None:
    """The same bits, and the same account of what was excluded, on all ranks that have a report."""
    for operation, row in zip(operations, reports, strict=True):
        there = [rank for rank, report in enumerate(row) if report is not None]
        assert all(report.error == "" for report in row if report is not None)
        assert len({operation.arrays[rank].tobytes() for rank in there}) == 1
        assert len({(tuple(r.excluded), r.void_bytes, r.view) for r in row if r is not None}) == 1


def total_of(operations: Sequence[Operation]) -> npt.NDArray[np.float64]:
    return sum((operation.arrays[0].astype(np.float64) for operation in operations), np.zeros(ELEMENTS))


def expected_total(steps: int) -> npt.NDArray[np.float64]:
    means = (sum(contribution(rank, step) for rank in range(RANKS)) / RANKS for step in range(steps))
    return sum(means, np.zeros(ELEMENTS))


def run_until_nothing_is_left(simulation: Simulation, steps: int) -> list[Operation]:
    """On until no rank has a residual; all operations from then on would be exact means."""
    done: list[Operation] = []
    for _ in range(20):
        operations = loop(5, first_step=steps + len(done))
        reports = simulation.run(operations)
        assert_equal(operations, reports)
        done += operations
        last = [report for report in reports[-1] if report is not None]
        if not any(report.excluded or report.residual_bytes or report.oldest_steps for report in last):
            return done
    raise AssertionError("residuals never ended")


# --- Carry -------------------------------------------------------------------------------------------------


def test_a_quiet_network_excludes_nothing() -> None:
    operations = loop(12)
    reports = Simulation(GIGABIT).run(operations)
    assert excluded_bytes(reports) == 0
    assert {report.closed_by for report in reports_of(reports)} == {"complete"}
    assert_equal(operations, reports)
    assert (total_of(operations) == expected_total(12)).all()
    for report in reports_of(reports):
        assert report.members == list(range(RANKS))
        assert report.holes == []
        assert report.residual_bytes == report.carried_bytes == report.void_bytes == 0


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(replace(GIGABIT, link=Link(loss=0.02)), id="loss"),
        pytest.param(replace(GIGABIT, link=Link(jitter_seconds=1e-3, reorder=0.1)), id="jitter"),
        pytest.param(
            replace(GIGABIT, backgrounds=[Background(2, t / 10, t / 10 + 0.05, 9e8) for t in range(200)]),
            id="bursts",
        ),
        pytest.param(
            replace(
                GIGABIT,
                link=Link(loss=0.01),
                pauses=[Pause(rank, 0.02 + 0.05 * rank, 0.03 + 0.05 * rank) for rank in range(RANKS)],
            ),
            id="pauses",
        ),
    ],
)
def test_whatever_is_lost_every_contribution_counts_once_and_all_ranks_get_the_same(network: Network) -> None:
    simulation = Simulation(network)
    operations = loop(60)
    reports = simulation.run(operations)
    assert_equal(operations, reports)
    operations += run_until_nothing_is_left(simulation, 60)
    assert (total_of(operations) == expected_total(len(operations))).all()


def test_forced_loss_of_contributions_is_carried() -> None:
    """What is hopeless in one operation comes with a later one of the stream."""
    forced = ForcedLoss("random", 0.05, "contributions")
    # Deadlines are known by operation 20. Ranks that end later begin later, so whole ones are late too.
    network = replace(GIGABIT, warmup_operations=20, exclude_at_most=0.5, forced_loss=forced)
    operations = loop(60)
    reports = Simulation(network).run(operations)
    assert_equal(operations, reports)
    assert excluded_bytes(reports[:20]) == 0
    assert excluded_bytes(reports[20:]) / (40 * RANKS * RANKS * ELEMENTS * 4) > 0.02
    assert any(report.carried_bytes for report in reports_of(reports))
    assert (total_of(operations) <= expected_total(60)).all()


def test_a_late_ranks_contribution_is_excluded_and_carried() -> None:
    simulation = Simulation(GIGABIT)
    operations = loop(30)
    simulation.run(operations)
    late = loop(8, first_step=30, late=[0.0, 0.0, 0.0, 0.02])  # twenty times the usual
    reports = simulation.run(late)
    assert_equal(late, reports)
    assert {rank for report in reports_of(reports) for rank, count in report.excluded if count} == {3}
    assert sum(row[3].residual_bytes for row in reports if row[3] is not None) > 0
    waited = [row[0] for row in reports if row[0] is not None and row[0].waited_for == 3]
    assert any(report.waited_seconds > 0.02 for report in waited)  # before its residual gets too old
    rest = run_until_nothing_is_left(simulation, 38)
    everything = [*operations, *late, *rest]
    assert (total_of(everything) == expected_total(len(everything))).all()


def test_exclude_at_most_says_how_much_deadlines_may_exclude() -> None:
    def excluded(at_most: float) -> float:
        bursts = [Background(2, t / 5, t / 5 + 0.05, 9e8) for t in range(400)]
        reports = Simulation(replace(GIGABIT, backgrounds=bursts, exclude_at_most=at_most)).run(loop(200))
        return excluded_bytes(reports[60:]) / (140 * RANKS * RANKS * ELEMENTS * 4)

    assert excluded(0.0) < 0.005  # no deadline knows beforehand what is to come
    assert 0.02 < excluded(0.05) < 0.08


def test_a_crashed_rank_is_removed_and_the_others_go_on_without_it() -> None:
    simulation = Simulation(replace(GIGABIT, crashes=[Crash(3, 1.001)]))
    warm = simulation.run(loop(8))
    assert simulation.now_seconds < 1.0
    operations = loop(12, first_step=8, first_start=1.0 - simulation.now_seconds)
    reports = simulation.run(operations)
    assert all(row[3] is None for row in reports)
    assert_equal(operations, reports)
    usual = warm[-1][0]
    assert usual is not None
    for report in reports[-1][:3]:
        assert report is not None
        assert report.members == [0, 1, 2]
        assert report.view > usual.view
        assert report.elapsed_seconds < 3 * usual.elapsed_seconds
    of_three = sum(contribution(rank, 19) for rank in range(3)) / np.float32(3)
    np.testing.assert_allclose(operations[-1].arrays[0], of_three, rtol=1e-6)  # nothing is zero
    longest = max(report.elapsed_seconds for report in reports_of(reports))
    assert longest < usual.elapsed_seconds + 0.5
    assert simulation.counters()["crash_dropped"] > 0


def test_fewer_than_min_ranks_is_an_error_in_the_report() -> None:
    simulation = Simulation(replace(GIGABIT, crashes=[Crash(0, 1.0)], min_ranks=RANKS))
    simulation.run(loop(8))
    last = simulation.run(loop(8, first_step=8, first_start=1.0 - simulation.now_seconds))[-1][1]
    assert last is not None
    assert (last.error_code, last.ranks) == (TOO_FEW, [0])


def test_too_few_ranks_are_waited_for_as_long_as_quorum_seconds_says() -> None:
    def waited(seconds: float) -> float:
        network = replace(GIGABIT, crashes=[Crash(0, 1.0)], min_ranks=RANKS, quorum_seconds=seconds)
        simulation = Simulation(network)
        simulation.run(loop(8))
        reports = simulation.run(loop(8, first_step=8, first_start=1.0 - simulation.now_seconds))
        return max(report.elapsed_seconds for report in reports_of(reports))

    assert waited(6.0) - waited(2.0) == pytest.approx(4.0, abs=0.5)


def test_what_is_lost_at_the_very_end_is_soon_repaired() -> None:
    """Nothing comes after it that would show that it is lost."""
    port = {"egress": Port(2e8), "ingress": Port(2e8, queue_bytes=256 * 1024)}
    simulation = Simulation(
        Network(RANKS, seed=5, link=Link(loss=0.01), coalesce=1.0, wake_seconds=2e-4, **port)
    )
    arrays = [np.zeros(1024 * 1024, np.float32) for _ in range(RANKS)]
    seconds = []
    for step in range(150):
        operation = Operation(arrays, "mean", bounded=True, stream=STREAM, step=step)
        reports = simulation.run([operation])[0]
        seconds.append(max(report.elapsed_seconds for report in reports if report is not None))
    usual, slow = np.percentile(seconds[25:], [50, 95])
    assert slow < 1.05 * usual


# --- Exact -------------------------------------------------------------------------------------------------


def test_weights_make_a_weighted_mean() -> None:
    arrays = [np.full(ELEMENTS, value, np.float32) for value in (6.0, 1.0, 5.0, 8.0)]
    reports = Simulation(GIGABIT).all_reduce(arrays, "mean", weights=[3, 1, 2, 4])
    assert all(report is not None and not report.bounded for report in reports)
    assert all((array == 2.0).all() for array in arrays)


def test_a_rank_with_weight_0_gives_nothing_and_gets_the_result() -> None:
    arrays = [contribution(rank) for rank in range(RANKS)]
    Simulation(GIGABIT).all_reduce(arrays, "mean", weights=[1, 1, 1, 0])
    of_three = sum(contribution(rank) for rank in range(3)) / np.float32(3)
    for array in arrays:
        np.testing.assert_allclose(array, of_three, rtol=1e-6)


# --- Best effort -------------------------------------------------------------------------------------------


def missing(report: _core.Report | None, stage: str, peer: int) -> Any:
    """Which elements of the bucket are in holes."""
    found = np.zeros(ELEMENTS, bool)
    for hole_stage, hole_peer, begin, size in report.holes if report else ():
        if (hole_stage, hole_peer) == (stage, peer):
            found[begin // 4 : (begin + size) // 4] = True
    return found


def test_best_effort_sends_nothing_again_and_says_what_is_zero() -> None:
    network = replace(BEST_EFFORT, link=Link(loss=0.02), ingress=Port())
    operations = loop(20)
    reports = Simulation(network).run(operations)
    warm, rest = reports[: network.warmup_operations], reports[network.warmup_operations + 1 :]
    assert lost_bytes(warm) == 0  # the next one may have begun elsewhere before this rank was warm
    assert lost_bytes(rest) > 0
    assert not any(report.repaired_bytes for report in reports_of(rest))
    for report in reports_of(rest):
        decisions = sum(size for stage, _, _, size in report.holes if stage == "decision")
        assert decisions == report.lost_decision_bytes
    for operation, row in zip(operations, reports, strict=True):
        for rank, report in enumerate(row):
            zero = np.zeros(ELEMENTS, bool)
            for owner in range(RANKS):
                zero |= missing(report, "decision", owner)
            assert ((operation.arrays[rank] == 0) == zero).all()


def test_a_quiet_network_loses_nothing_with_best_effort() -> None:
    operations = loop(12)
    reports = Simulation(BEST_EFFORT).run(operations)
    assert lost_bytes(reports) == 0
    assert (total_of(operations) == expected_total(12)).all()
    for number, row in enumerate(reports):
        for report in row:
            assert report is not None
            assert report.bounded
            assert (report.deadline_seconds > 0) == (number >= BEST_EFFORT.warmup_operations)


def test_bound_settings_shape_the_deadline_of_best_effort() -> None:
    """A third of a second each."""
    slow = replace(BEST_EFFORT, egress=Port(1e7), ingress=Port())

    def deadline_over_usual(**settings: Any) -> float:
        last = Simulation(replace(slow, **settings)).run(loop(12))[-1][0]
        assert last is not None
        return last.deadline_seconds / last.elapsed_seconds

    assert deadline_over_usual(bound_least=2.0, bound_most=2.0) == pytest.approx(2.0, rel=0.1)
    assert deadline_over_usual(bound_least=3.0, bound_most=9.0, bound_percentile=50.0) == pytest.approx(
        3.0, rel=0.1
    )


def test_storms_hit_few_ranks_hard() -> None:
    """A share of 2 % on average: of each operation's ranks a tenth lose a fifth of what they wait for."""
    storms = replace(BEST_EFFORT, payload_bytes=256, forced_loss=ForcedLoss("storms", 0.02, "everything"))
    reports = Simulation(storms).run(loop(65))[5:]  # the first ones are spared
    shares = np.array([r.lost_decision_bytes / (r.bytes * 3 / 4) for r in reports_of(reports)])
    struck = shares > 0.1
    assert 0.04 < struck.mean() < 0.2
    assert 0.12 < shares[struck].mean() < 0.28
    assert shares[~struck].mean() < 0.005


@pytest.mark.parametrize(("ranks", "bounded"), [(64, True), (65, False)])
def test_more_ranks_than_a_set_can_name_are_exact(ranks: int, bounded: bool) -> None:
    arrays = [np.ones(ranks * 16, np.float32) for _ in range(ranks)]
    reports = Simulation(Network(ranks, coalesce=1.0)).all_reduce(arrays, "mean", bounded=True, stream=STREAM)
    assert {report.bounded for report in reports if report is not None} == {bounded}
