"""The studies in virtual time: each runs and tells one story in all its forms, and what they count with is
right in cases that can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optireduce import hadamard as package_hadamard
from optireduce.experiments import (
    early_timeout,
    grid_scale,
    hadamard_sweep,
    incast,
    mse_topology,
    sim_lost_packets,
    tail_drop_accuracy,
)
from optireduce.experiments.sim_bursts import Neighbour
from optireduce.experiments.sim_environment import Environment
from optireduce.experiments.sim_loop import Loop, Measured, note, run_loop
from optireduce.experiments.sim_lost_packets import PACKET, error_parts, heavy_tail, lost_packets
from optireduce.experiments.sim_numbers import spread_series, summary
from optireduce.experiments.sim_port import dropped, overflow_share
from optireduce.experiments.sim_repeats import Repeats
from optireduce.experiments.sim_topologies import (
    TOPOLOGIES,
    draw_gradients,
    parameter_server,
    relative_error,
    ring,
    transpose,
)
from optireduce.experiments.sim_training import Outcome, Place, above, scores
from optireduce.experiments.study import Findings, Settings, Study

STUDIES = {
    module.STUDY.name: module.STUDY
    for module in (mse_topology, hadamard_sweep, early_timeout, incast, grid_scale, tail_drop_accuracy)
}
every_study = pytest.mark.parametrize("study", list(STUDIES.values()), ids=list(STUDIES))


def run_quick(study: Study, seeds: int | None = None) -> tuple[Findings, float, list[str]]:
    """What it found, how far it moved the bar, and what it said on the way."""
    done, notes = 0.0, []

    def advance(note: str, more: float = 0) -> None:
        nonlocal done
        done += more
        notes.append(note)

    findings = study.run(Settings(quick=True, seeds=seeds), advance)
    return findings, done, notes


@cache
def quick(name: str) -> tuple[Findings, float, list[str]]:
    """Tests share runs."""
    return run_quick(STUDIES[name])


# --- All of them -------------------------------------------------------------------------------------------


def test_names_are_those_users_type() -> None:
    assert list(STUDIES) == [
        "mse-topology",
        "hadamard",
        "early-timeout",
        "incast",
        "grid-scale",
        "tail-drop-accuracy",
    ]
    assert not any(study.needs_lab for study in STUDIES.values())


@every_study
def test_progress_adds_up(study: Study) -> None:
    _, done, notes = quick(study.name)
    assert done == pytest.approx(study.units(Settings(quick=True)))
    assert all(notes)


@every_study
def test_more_seeds_are_more_work(study: Study) -> None:
    assert study.units(Settings(quick=True, seeds=3)) > study.units(Settings(quick=True, seeds=1))


@every_study
def test_a_full_run_is_more_work_than_a_quick_one(study: Study) -> None:
    assert study.units(Settings()) > 3 * study.units(Settings(quick=True))


@every_study
def test_findings_are_complete(study: Study) -> None:
    findings, _, _ = quick(study.name)
    assert findings.tables
    assert findings.figures
    assert findings.verdicts
    assert findings.notes
    json.dumps(asdict(findings))
    for table in findings.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
    for verdict in findings.verdicts:
        assert verdict.paper
        assert verdict.ours
        assert verdict.holds or verdict.note  # what does not hold is explained


@every_study
def test_figures_can_be_drawn(study: Study) -> None:
    findings, _, _ = quick(study.name)
    assert len({figure.name for figure in findings.figures}) == len(findings.figures)
    for figure in findings.figures:
        assert "seeds" in figure.caption or "draws" in figure.caption
        for series in figure.series:
            assert len(series.x) == len(series.y) > 0
            if figure.kind == "bars":
                assert max(series.x) < len(figure.categories)
            if series.low is not None and series.high is not None:
                rows = zip(series.low, series.y, series.high, strict=True)
                assert all(low <= value <= high for low, value, high in rows)


@every_study
def test_a_seed_repeats_everything(study: Study) -> None:
    assert asdict(run_quick(study)[0]) == asdict(quick(study.name)[0])


# --- Numbers -----------------------------------------------------------------------------------------------


def test_a_summary_by_hand() -> None:
    found = summary([1.0, 3.0])
    assert (found.mean, found.spread, found.count) == (2.0, pytest.approx(2**0.5), 2)
    assert found.error == pytest.approx(1.0)
    assert (found.low, found.high) == (2 - found.spread, 2 + found.spread)
    assert summary([5.0]).spread == 0


def test_a_curve_in_another_unit() -> None:
    series = spread_series("s", [1.0], [summary([1.0, 3.0])], scale=1e3)
    assert series.y == [2000.0]
    assert series.low is not None
    assert series.low[0] == pytest.approx(2000 - 1000 * 2**0.5)


# --- Topologies --------------------------------------------------------------------------------------------


def one_packet_each(ranks: int) -> Any:
    """Rank r's gradient is 2^r everywhere: a sum says who is in it."""
    return np.broadcast_to(2.0 ** np.arange(ranks).reshape(-1, 1, 1, 1), (ranks, ranks, 1, 1)).copy()


class Losing:
    """A generator of which only these draws are below any loss: ``Losing((1, 3))`` loses at flat places 1 and
    3 of the first array that is drawn."""

    def __init__(self, *places: tuple[int, ...]) -> None:
        self._places = list(places)

    def random(self, shape: tuple[int, ...]) -> Any:
        draws = np.ones(shape)
        draws.flat[list(self._places.pop(0)) if self._places else []] = 0.0
        return draws


@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_without_loss_all_ranks_have_the_mean(name: str) -> None:
    gradients = draw_gradients(4, 5, 3, alike=False, rng=np.random.default_rng(0))
    results = TOPOLOGIES[name](gradients, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(results, np.broadcast_to(gradients.mean(axis=0), results.shape))
    assert relative_error(results, gradients) < 1e-20


def test_tar_loses_one_contribution_or_one_result() -> None:
    gradients = one_packet_each(4)
    contribution = transpose(gradients, 0.5, Losing((1 * 4 + 2,)))  # of rank 1 to shard 2
    assert (contribution[:, 2] * 4 == 15 - 2).all()
    assert (contribution[:, [0, 1, 3]] * 4 == 15).all()
    result = transpose(gradients, 0.5, Losing((), (1 * 4 + 2,)))  # of shard 2 to rank 1
    assert (result[:, 2, 0, 0] * 4).tolist() == [15, 0, 15, 15]


def test_a_rank_loses_nothing_of_its_own() -> None:
    everything = (*range(16),)
    alone = transpose(one_packet_each(4), 0.5, Losing(everything, ()))
    assert (alone[0, :, 0, 0] * 4).tolist() == [1, 2, 4, 8]
    server = parameter_server(one_packet_each(4), 0.5, Losing(everything, ()))
    assert (server * 4 == 1).all()  # rank 0 is the server


def test_a_port_that_loses_more_does_so_on_the_way_to_the_server() -> None:
    gradients = one_packet_each(4)
    results = parameter_server(gradients, 0.0, np.random.default_rng(0), server_loss=1.0)
    assert (results * 4 == 1).all()


def test_the_ring_loses_what_was_summed_so_far_and_for_all_further_on() -> None:
    gradients = one_packet_each(4)
    summing = ring(gradients, 0.5, Losing((), (0,)))  # shard 0, from rank 1 to rank 2
    assert (summing[:, 0] * 4 == 4 + 8).all()
    assert (summing[:, 1:] * 4 == 15).all()
    spreading = ring(gradients, 0.5, Losing((), (), (), (), (0,)))  # from rank 0 to 1, after rank 3 began
    assert (spreading[:, 0, 0, 0] * 4).tolist() == [15, 0, 0, 15]


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_small_losses_harm_as_much_as_by_hand(name: str, alike: bool) -> None:
    rng = np.random.default_rng(1)
    gradients = draw_gradients(8, 20_000, 1, alike, rng)
    measured = relative_error(TOPOLOGIES[name](gradients, 1e-3, rng), gradients) / 1e-3
    assert measured == pytest.approx(mse_topology.small_loss_error(name, 8, alike), rel=0.15)


def test_the_error_of_zeros_is_one() -> None:
    gradients = draw_gradients(4, 5, 3, alike=True, rng=np.random.default_rng(0))
    assert relative_error(np.zeros_like(gradients), gradients) == pytest.approx(1.0)
    assert (gradients == gradients[0]).all()


def test_differences_count_when_they_exceed_their_noise() -> None:
    assert mse_topology.clearly_above([2.0, 2.1, 1.9], [1.0, 1.1, 0.9])
    assert not mse_topology.clearly_above([1.0, 2.0, 1.5], [1.5, 1.0, 2.0])


# --- A port ------------------------------------------------------------------------------------------------


def test_a_port_drops_what_it_cannot_hold() -> None:
    assert dropped(np.array([5, 0, 0, 3]), queue=2) == 3 + 1
    assert dropped(np.array([1, 1, 1]), queue=1) == 0


def test_one_sender_never_fills_a_port_and_seven_do() -> None:
    rng = np.random.default_rng(0)
    assert overflow_share(1, 0.9, burst=16, queue=1, slots=5_000, rng=rng) == 0
    shares = [overflow_share(7, load, burst=16, queue=32, slots=20_000, rng=rng) for load in (0.5, 0.9, 2.0)]
    assert 0 <= shares[0] < shares[1] < shares[2]
    assert shares[2] == pytest.approx(0.5, abs=0.05)  # twice what it passes on


# --- Lost packets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["random", "tail", "bursts"])
def test_patterns_lose_their_share(pattern: str) -> None:
    rng = np.random.default_rng(0)
    shares = [lost_packets(pattern, 0.05, 30, rng).mean() for _ in range(3000)]  # one and a half of them
    assert np.mean(shares) == pytest.approx(0.05, rel=0.15)


def test_a_tail_is_last_and_bursts_are_runs() -> None:
    rng = np.random.default_rng(0)
    assert lost_packets("tail", 0.1, 20, rng).tolist() == [False] * 18 + [True] * 2
    lost = lost_packets("bursts", 0.1, 100_000, rng)
    runs = np.count_nonzero(np.diff(lost.astype(int)) == 1)
    assert lost.sum() / runs == pytest.approx(8, rel=0.1)


def test_blocks_and_cap_are_those_of_the_package() -> None:
    assert (sim_lost_packets.BLOCK, sim_lost_packets.CAP) == (package_hadamard.BLOCK, package_hadamard._CAP)


def test_raw_loses_entries_and_the_transform_spreads_the_loss() -> None:
    gradient = heavy_tail(0.05, 512, 10.0, np.random.default_rng(0))
    lost = lost_packets("tail", 0.05, 512, np.random.default_rng(0))
    raw = sim_lost_packets.raw(gradient, lost, 0)
    harmed = np.repeat(lost, PACKET)
    assert (raw[harmed] == 0).all()
    assert (raw[~harmed] == gradient[~harmed]).all()
    encoded = sim_lost_packets.hadamard(gradient, lost, 0)
    errors = (encoded - gradient) ** 2
    assert errors.mean() < 0.2 * ((raw - gradient) ** 2).mean()
    block = slice(-sim_lost_packets.BLOCK, None)  # the tail lies in the last one
    assert errors[block][~harmed[block]].mean() > 0.3 * errors[harmed].mean()


def test_without_loss_the_transform_gives_the_gradient_back() -> None:
    gradient = heavy_tail(0.05, 512, 10.0, np.random.default_rng(0))
    np.testing.assert_allclose(
        sim_lost_packets.hadamard(gradient, np.zeros(512, bool), 3), gradient, atol=1e-5
    )


def test_the_tail_is_larger_and_the_mean_square_one() -> None:
    gradient = heavy_tail(0.1, 500, 10.0, np.random.default_rng(0)).astype(np.float64)
    assert np.mean(gradient**2) == pytest.approx(1.0, rel=1e-5)
    tail, rest = gradient[-1600:], gradient[:-1600]
    assert np.mean(tail**2) / np.mean(rest**2) == pytest.approx(100, rel=0.1)
    assert abs(tail.mean()) < 0.1 * tail.std()


def test_errors_part_into_bias_and_noise() -> None:
    rng = np.random.default_rng(0)
    parts = error_parts([2.0 + rng.standard_normal(1000) for _ in range(50)])
    assert parts.mse == pytest.approx(5.0, rel=0.02)
    assert parts.bias == pytest.approx(4.0, rel=0.02)
    assert error_parts([rng.standard_normal(10_000) for _ in range(5)]).bias < 0.01


# --- Loops in virtual time ---------------------------------------------------------------------------------


def test_bursts_follow_each_other_and_fill_their_share() -> None:
    bursts = Neighbour(0.2, 0.4, 1e8).bursts(8, 1000.0, np.random.default_rng(0))
    assert all(one.end_seconds < next_.begin_seconds for one, next_ in pairwise(bursts))
    assert sum(b.end_seconds - b.begin_seconds for b in bursts) / 1000 == pytest.approx(1 / 3, rel=0.1)
    assert {burst.rank for burst in bursts} == set(range(8))
    assert bursts[-1].begin_seconds < 1000.0


def report(seconds: float, holes: list[tuple[str, int, int, int]], closed_by: str) -> Any:
    return SimpleNamespace(
        bytes=1000,
        elapsed_seconds=seconds,
        holes=holes,
        closed_by=closed_by,
        repaired_bytes=100,
        incast=7,
        window_bytes=10,
        early_fraction=0.5,
        deadline_seconds=2 * seconds,
        excluded=[],
    )


def test_an_operation_takes_as_long_as_its_slowest_rank_and_loses_what_is_in_holes() -> None:
    measured = Measured()
    hole = ("decision", 1, 0, 40)
    note(measured, [report(1.0, [hole], "early"), report(3.0, [hole, hole], "deadline")])
    assert measured.seconds == [3.0]
    assert measured.lost == [pytest.approx(120 / 2000)]  # two stages, one other rank
    assert measured.repaired == [pytest.approx(0.1)]
    assert measured.closed_by == {"complete": 0, "early": 1, "deadline": 1}
    assert measured.deadline_seconds == [6.0]
    assert measured.without_early == [3.0]  # 2.0 and 3.0: the rank that ended early waits, the other did


def test_an_excluded_contribution_counts_once_however_many_ranks_tell_of_it() -> None:
    told = [report(1.0, [], "deadline") for _ in range(2)]
    for one in told:
        one.excluded = [(1, 100)]
    measured = Measured()
    note(measured, told)
    assert measured.lost == [pytest.approx(100 / 2000)]


QUIET = Environment("quiet", 1e9, 50e-6, 256 * 1024)
SHORT = Loop(measured=3, settling=22, elements=16 * 1024, compute_seconds=1e-3)


def test_only_operations_after_the_settling_count() -> None:
    done: list[int] = []
    measured = run_loop(QUIET.network(0), SHORT, done.append)
    assert len(measured.seconds) == len(measured.deadline_seconds) == SHORT.measured
    assert sum(done) == SHORT.operations == 25
    assert measured.lost == [0.0] * 3


def test_best_effort_ends_early_where_packets_are_lost() -> None:
    lossy = Environment("lossy", 1e9, 50e-6, 256 * 1024, loss=0.01)
    loop = Loop(measured=15, settling=60, elements=64 * 1024, compute_seconds=1e-3)
    # Eight seeds: in one alone the early end may hardly ever come first.
    networks = [lossy.network(seed, delivery="best-effort") for seed in range(8)]
    runs = [run_loop(network, loop, lambda _: None) for network in networks]
    assert sum(run.closed_by["early"] for run in runs) > 0
    assert all(sum(run.lost) > 0 for run in runs)
    assert sum(sum(run.without_early) for run in runs) > sum(sum(run.seconds) for run in runs)


def test_a_loop_that_outlasts_its_bursts_is_an_error() -> None:
    network = Environment("b", 1e9, 50e-6, 256 * 1024, neighbour=Neighbour(1e-3, 1e-3, 1e8)).network(0)
    early = list(network.backgrounds)[:2]
    with pytest.raises(RuntimeError, match="bursts ended"):
        run_loop(replace(network, backgrounds=early), SHORT, lambda _: None)


def measured_with(*seconds: float, lost: float = 0.0) -> Measured:
    return Measured(
        seconds=list(seconds),
        lost=[lost] * len(seconds),
        closed_by={"complete": 2, "early": 1, "deadline": 1},
        incast=[7.0],
        deadline_seconds=[9.0, 5.0],
        without_early=[2 * value for value in seconds],
    )


def test_repeats_are_means_over_seeds() -> None:
    repeats = Repeats([measured_with(1.0, 3.0), measured_with(5.0, 3.0)])
    assert repeats.seconds == summary([2.0, 4.0])
    assert repeats.p99 == summary([3.0, 5.0])
    assert repeats.early_share == 0.25
    assert repeats.without_early == summary([4.0, 8.0])
    assert (repeats.deadline, repeats.incast) == (7.0, 7.0)


def test_how_much_faster_a_grid_is() -> None:
    def cell(ranks: int, rows: int, seconds: float) -> grid_scale.Cell:
        return grid_scale.Cell(ranks, rows, [Measured(seconds=[seconds])])

    cells = [cell(16, 1, 0.5), cell(16, 4, 0.25), cell(1024, 32, 0.5)]
    assert grid_scale.speedup(cells, 16) == 2.0
    assert grid_scale.speedup(cells, 1024) is None


def test_what_the_early_timeout_saves() -> None:
    cell = early_timeout.Cell("somewhere", Repeats([measured_with(3.0, 1.0)]))
    assert cell.saves.mean == pytest.approx(0.5)
    assert cell.saves_clearly


def test_what_dynamic_incast_saves() -> None:
    cells = [
        incast.Cell(place, name, Repeats([measured_with(seconds)]))
        for place, name, seconds in [
            ("a", "1", 4.0),
            ("a", "dynamic", 3.0),
            ("b", "1", 1.0),
            ("b", "dynamic", 2.0),
        ]
    ]
    assert incast.saved(cells, "a", "1") == pytest.approx(0.25)
    assert incast.saved(cells, "b", "1") == pytest.approx(-1.0)


def test_a_small_window_leaves_a_long_path_idle() -> None:
    """What fixed incast is in this study must act on the protocol at all."""
    findings, _, _ = quick("incast")
    quiet = [cell for cell in findings.data["cells"] if cell["environment"] == "far, quiet"]
    times = {cell["incast"]: cell["repeats"]["runs"][0]["seconds"][0] for cell in quiet}
    assert times["1"] > 1.1 * times["dynamic"]


# --- Training ----------------------------------------------------------------------------------------------


def test_differences_are_to_the_same_seed() -> None:
    exact, carry = Place("digits", "exact"), Place("digits", "carry", "tail", 0.05)
    outcomes = [
        Outcome(place, seed, loss, score, 0.0, 0.0)
        for place, seed, loss, score in [
            (exact, 0, 1.0, 0.9),
            (exact, 1, 3.0, 0.9),
            (carry, 1, 3.3, 0.5),
            (carry, 0, 1.1, 0.7),
        ]
    ]
    found = above(outcomes, carry, exact)
    assert found.mean == pytest.approx(0.2)
    assert found.count == 2
    assert scores(outcomes, carry).mean == pytest.approx(0.6)


def test_training_really_loses_what_it_is_told() -> None:
    findings, _, _ = quick("tail-drop-accuracy")
    for run in findings.data["training"]:
        share = run["place"]["share"]
        # Owners wait for contributions with old residuals, and their own never get lost.
        least = 0.6 if run["place"]["strategy"] == "carry" else 0.8
        assert least * share <= run["lost_share"] <= 1.2 * share


def test_the_toy_shows_tails_spread_and_nothing_gained_at_random() -> None:
    findings, _, _ = quick("hadamard")
    toys = {(toy["pattern"], toy["share"]): toy["parts"] for toy in findings.data["toy"]}
    tail, random = toys["tail", 0.01], toys["random", 0.01]
    assert tail["raw"]["mse"] > 20 * tail["hadamard"]["mse"]
    assert tail["raw"]["bias"] > 0.9 * tail["raw"]["mse"]
    assert random["hadamard"]["mse"] == pytest.approx(random["raw"]["mse"], rel=0.3)
