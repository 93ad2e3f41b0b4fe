"""Grids of ranks: which rows there are, and all-reduces through them over real sockets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from ranks import LOOPBACK, MemoryStore, group_outcomes, group_results, narrow_mean, outcomes
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce import Communicator, Config, ConfigError, MismatchError
from optireduce.experiments.simulated_network import Network
from optireduce.experiments.simulation import Simulation
from optireduce.grid import FLAT_BELOW, rows_for

SHAPES = [(4, 2), (6, 2), (6, 3)]
WIDTH, STEPS = 256, 8  # of a model whose gradient is more than a packet, and of its training

Floats = npt.NDArray[np.float32]


def grid(groups: int, **settings: Any) -> Config:
    return replace(LOOPBACK, groups=groups, warmup_operations=3, **settings)


def alone(size: int) -> list[str]:
    return [f"10.0.0.{rank}" for rank in range(size)]


def given_by(rank: int) -> Floats:
    return np.random.default_rng(rank).standard_normal(1_000).astype(np.float32)


def in_turn(arrays: Sequence[Floats]) -> Floats:
    return functools.reduce(np.add, arrays)


def sum_by_rows(size: int, groups: int) -> Floats:
    """Of what the ranks give, in the order in which only a grid adds: rounding tells."""
    length = size // groups
    given = [given_by(rank) for rank in range(size)]
    total = in_turn([in_turn(given[row * length : (row + 1) * length]) for row in range(groups)])
    assert (total != in_turn(given)).any()
    return total


def test_rows_are_blocks_of_neighbours() -> None:
    assert rows_for(2, alone(6)) == [[0, 1, 2], [3, 4, 5]]
    assert rows_for(1, alone(6)) == []


@pytest.mark.parametrize("groups", [4, 5, 6, 7])
def test_a_number_of_rows_that_does_not_fit_names_those_that_do(groups: int) -> None:
    with pytest.raises(ConfigError, match=f"groups = {groups} is not usable for 6 ranks: .* 1, 2, 3"):
        rows_for(groups, alone(6))


def test_auto_leaves_few_ranks_and_prime_numbers_flat() -> None:
    assert rows_for("auto", alone(FLAT_BELOW - 2)) == []  # 126: it could have rows
    assert rows_for("auto", alone(FLAT_BELOW + 3)) == []  # 131


def test_auto_makes_about_as_many_rows_as_ranks_in_each() -> None:
    rows = rows_for("auto", alone(256))
    assert len(rows) == len(rows[0]) == 16
    assert sorted(rank for row in rows for rank in row) == list(range(256))


def test_auto_makes_hosts_rows_where_they_are_equal() -> None:
    hosts = [f"10.0.0.{rank % 32}" for rank in range(128)]
    assert rows_for("auto", hosts)[1] == [1, 33, 65, 97]
    uneven = rows_for("auto", ["10.0.0.1", *hosts[1:127], "10.0.0.2"])
    assert {len(row) for row in uneven} in ({8}, {16})  # as many rows as ranks in each, or nearly


def test_auto_makes_hosts_rows_however_few_they_are() -> None:
    assert rows_for("auto", ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2) == [[0, 1], [2, 3]]
    assert rows_for("auto", ["10.0.0.1"] * 3 + ["10.0.0.2"]) == []
    assert rows_for("auto", ["10.0.0.1"] * 4) == []


@pytest.mark.parametrize("groups", [0, -1, 1.5, True, "many"])
def test_groups_must_be_a_number_or_auto(groups: Any) -> None:
    with pytest.raises(ConfigError, match=r"groups = .* must be 'auto' or an integer from 1"):
        Config(groups=groups)


def test_groups_from_the_environment() -> None:
    assert Config.from_env({"OPTIREDUCE_GROUPS": "4"}).groups == 4
    assert Config.from_env({"OPTIREDUCE_GROUPS": "auto"}).groups == "auto"
    with pytest.raises(ConfigError, match="OPTIREDUCE_GROUPS"):
        Config.from_env({"OPTIREDUCE_GROUPS": "some"})


def test_a_simulated_grid_gives_the_mean() -> None:
    arrays = [np.full(10_000, float(rank), np.float32) for rank in range(6)]
    reports = Simulation(Network(ranks=6, groups=3)).all_reduce(arrays, "mean")
    assert all(report is not None and report.error == "" for report in reports)
    assert all((array == 2.5).all() for array in arrays)


def test_a_simulated_grid_adds_up_its_rows_first() -> None:
    arrays = [given_by(rank) for rank in range(6)]
    Simulation(Network(ranks=6, groups=3)).all_reduce(arrays)
    assert all((array == sum_by_rows(6, 3)).all() for array in arrays)


@pytest.mark.parametrize(("size", "groups"), SHAPES)
def test_a_grid_adds_up_its_rows_first(size: int, groups: int) -> None:
    def body(communicator: Communicator) -> Floats:
        array = given_by(communicator.rank)
        communicator.all_reduce(array, op="sum")
        return array

    for result in group_results(size, body, grid(groups)):
        assert (result == sum_by_rows(size, groups)).all()


@pytest.mark.parametrize(("size", "groups"), SHAPES)
def test_all_reduces_through_a_grid(size: int, groups: int) -> None:
    lengths = (100_000, 10)

    def body(communicator: Communicator) -> list[bytes]:
        rng = np.random.default_rng(communicator.rank)
        found = []
        for step in range(12):
            for values in lengths:
                array = rng.standard_normal(values).astype(np.float32)
                assert not communicator.all_reduce(array, op="mean" if step % 2 else "sum").bounded
                found.append(array.tobytes())
        return found

    results = group_results(size, body, grid(groups))
    rngs = [np.random.default_rng(rank) for rank in range(size)]
    for place, outcomes_of_all in enumerate(zip(*results, strict=True)):
        given = np.array(
            [rng.standard_normal(lengths[place % 2]).astype(np.float32) for rng in rngs], np.float64
        )
        expected = given.mean(0) if place // 2 % 2 else given.sum(0)
        assert len(set(outcomes_of_all)) == 1
        np.testing.assert_allclose(
            np.frombuffer(outcomes_of_all[0], np.float32), expected, rtol=1e-4, atol=1e-5
        )


def test_narrow_forms_go_through_a_grid() -> None:
    def body(communicator: Communicator) -> bytes:
        array = np.linspace(-1, 1, 100_000, dtype=np.float32) * (communicator.rank + 1)
        narrow_mean(communicator, array)
        return array.tobytes()

    for wire, tolerance in (("bf16", 0.03), ("int8", 0.06)):
        results = group_results(4, body, grid(2, wire=wire))
        assert all(result == results[0] for result in results)
        expected = np.linspace(-1, 1, 100_000) * 2.5
        np.testing.assert_allclose(np.frombuffer(results[0], np.float32), expected, atol=tolerance)


def test_loss_on_the_way_is_repaired() -> None:
    def body(communicator: Communicator) -> int:
        for _ in range(10):
            array = np.full(5_000, float(communicator.rank), np.float32)
            communicator.all_reduce(array, op="mean")
            assert (array == 2.5).all()
        return int(communicator.stats()["repaired_bytes"])

    assert sum(group_results(6, body, grid(3, drop=0.05, impairment_seed=1))) > 0


def test_a_mismatch_names_ranks_of_the_group() -> None:
    def body(communicator: Communicator) -> None:
        communicator.all_reduce(np.zeros(1_000 if communicator.rank == 3 else 2_000, np.float32))

    found = group_outcomes(4, body, grid(2))
    assert all(isinstance(error, MismatchError) and 3 in error.ranks for error in found), found


def test_all_ranks_must_ask_for_the_same_rows() -> None:
    store = MemoryStore()

    def run(rank: int) -> None:
        Communicator(rank, 4, store, grid(2 if rank else 1)).close()

    found = outcomes(4, run)
    assert all("groups is" in str(error) for error in found), found


def fresh_model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WIDTH)


def train(rank: int, size: int, directory: str) -> bytes:
    with process_group("gloo", rank, size, directory):
        model = DistributedDataParallel(fresh_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = optireduce.attach(model, grid(2), optimizer=optimizer)
        torch.manual_seed(rank)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(16, WIDTH)).square().mean().backward()
            optimizer.step()
        session.close()
        return bytes(model.module.weight.detach().numpy().tobytes())


def trained_alone(size: int) -> Floats:
    """The same training in one process, with the batches of all ranks."""
    model = fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.Generator().manual_seed(rank) for rank in range(size)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for generator in data:
            (model(torch.randn(16, WIDTH, generator=generator)).square().mean() / size).backward()
        optimizer.step()
    return np.asarray(model.weight.detach().numpy(), np.float32)


def test_training_through_a_grid_keeps_replicas_together(on_ranks: Callable[..., list[Any]]) -> None:
    results = on_ranks(4, train)
    assert all(result == results[0] for result in results)
    got = np.frombuffer(results[0], np.float32).reshape(WIDTH, WIDTH)
    np.testing.assert_allclose(got, trained_alone(4), rtol=1e-4, atol=1e-6)


def test_grids_do_not_multicast() -> None:
    """Each rank sends what it reduced to its row or column only."""
    config = grid(2, multicast="on")
    store = MemoryStore()

    def join(rank: int) -> None:
        Communicator(rank, 4, store, config).close()

    for error in outcomes(4, join):
        assert isinstance(error, optireduce.ConnectError)
        assert 'multicast = "on" is not usable with groups = 2' in str(error)
