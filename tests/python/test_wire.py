"""Narrow forms on the wire: what is rounded, how, that all ranks get the same, and what is never touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from ranks import LOOPBACK, MemoryStore, group_results, narrow_mean, outcomes
from test_training_loops import batches, step, trainer
from torch_ranks import CONFIG, process_group

import optireduce
from optireduce import Communicator, Config, ConfigError, _core
from optireduce.dtypes import DTYPES
from optireduce.wire import IdleBuffers, effective_wire, lost_values, travelling

OnRanks = Callable[..., list[Any]]
Floats = npt.NDArray[np.float32]
RANKS = 3
ELEMENTS = 64 * 1024 + 7
WIRES = ("bf16", "int8")


def contribution(rank: int, elements: int = ELEMENTS) -> Floats:
    return np.random.default_rng(rank).standard_normal(elements).astype(np.float32)


def exact_mean(elements: int = ELEMENTS) -> Floats:
    return np.mean([contribution(rank, elements) for rank in range(RANKS)], axis=0, dtype=np.float64)


def mean_over(wire: str, elements: int = ELEMENTS, dtype: Any = np.float32) -> list[Any]:
    def body(group: Communicator) -> tuple[Any, optireduce.Report]:
        values = contribution(group.rank, elements).astype(dtype)
        return values, narrow_mean(group, values) if dtype == np.float32 else group.all_reduce(values)

    return group_results(RANKS, body, replace(LOOPBACK, wire=wire))


def as_bf16(values: Floats) -> Floats:
    return np.asarray(values.astype(ml_dtypes.bfloat16), np.float32)


def bf16_mean_by(owner: int) -> Floats:
    """As that rank makes it: its own contribution as it is, those of others rounded."""
    total = contribution(owner)
    for rank in set(range(RANKS)) - {owner}:
        total += as_bf16(contribution(rank))
    return as_bf16(total / np.float32(RANKS))


def test_bf16_rounds_the_mean_and_contributions_of_others_once_each() -> None:
    """Any rank may own a value."""
    by_owner = np.stack([bf16_mean_by(owner) for owner in range(RANKS)])
    for values, report in mean_over("bf16"):
        assert report.bytes == 2 * ELEMENTS
        assert (by_owner == values).any(axis=0).all()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("wire", WIRES)
def test_all_ranks_get_the_same_bits_at_every_length(wire: str, ranks: int) -> None:
    lengths = (1, 61, 62, 63, 64 * ranks, 30_000, 32_737 * ranks + 1, 1_100_003)

    def body(group: Communicator) -> list[Floats]:
        found = [contribution(group.rank, length) for length in lengths]
        for values in found:
            narrow_mean(group, values)
        return found

    found = group_results(ranks, body, replace(LOOPBACK, wire=wire))
    for number, length in enumerate(lengths):
        exact = np.mean([contribution(rank, length) for rank in range(ranks)], axis=0)
        for rank in range(ranks):
            np.testing.assert_array_equal(found[rank][number], found[0][number])
        assert np.abs(found[0][number] - exact).max() < 0.15


@pytest.mark.parametrize("wire", WIRES)
def test_an_operation_that_fails_says_so_and_the_next_one_is_right(wire: str) -> None:
    def body(group: Communicator) -> Floats:
        with pytest.raises(optireduce.MismatchError):
            narrow_mean(group, np.ones(ELEMENTS + 62 * group.rank, np.float32))
        values = np.full(ELEMENTS, 254.0 * group.rank, np.float32)  # no form rounds it
        narrow_mean(group, values)
        return values

    for values in group_results(2, body, replace(LOOPBACK, wire=wire)):
        np.testing.assert_array_equal(values, np.full(ELEMENTS, 127.0, np.float32))


@pytest.mark.parametrize(
    ("dtype", "op", "wide_values"), [("bfloat16", 0, 6), ("float32", 0, 5), ("bfloat16", 2, 5)]
)
def test_the_engine_refuses_values_that_its_data_cannot_stand_for(
    dtype: str, op: int, wide_values: int
) -> None:
    def body(group: Communicator) -> None:
        memory = np.zeros(64, np.float32).ctypes.data
        with pytest.raises(ValueError, match=f"5 {dtype} .* cannot stand for {wide_values} float32"):
            group._transport.engine.all_reduce(
                memory, 5, DTYPES[dtype].code, op, 1.0, wide=memory, wide_values=wide_values
            )

    group_results(1, body, LOOPBACK)


def test_int8_is_near_the_mean_and_the_same_everywhere() -> None:
    found = mean_over("int8")
    steps = 4 / 127 * 1.01  # the largest of 62 normal numbers is rarely above 4.5
    for values, report in found:
        np.testing.assert_array_equal(values, found[0][0])
        assert np.abs(values - exact_mean()).max() < 2 * steps * 1.2
        assert report.bytes == -(-ELEMENTS // 62) * 64


def test_int8_is_right_on_average() -> None:
    rounds = 300

    def body(group: Communicator) -> Floats:
        total = np.zeros(ELEMENTS)
        for _ in range(rounds):
            values = contribution(group.rank)
            narrow_mean(group, values)
            total += values
        return np.asarray(total / rounds, np.float32)

    found = group_results(RANKS, body, replace(LOOPBACK, wire="int8"))
    error = found[0] - exact_mean()
    spread = 0.6 * 4 / 127 / np.sqrt(rounds)  # of one entry's mean: both roundings together, at most
    assert np.abs(error.mean()) < 6 * spread / np.sqrt(ELEMENTS)
    assert np.abs(error).max() < 7 * spread


@pytest.mark.parametrize("wire", WIRES)
def test_only_gradients_are_narrowed(wire: str) -> None:
    def body(group: Communicator) -> Floats:
        values = contribution(group.rank)
        group.all_reduce(values, op="mean")
        return values

    plain = group_results(RANKS, body, LOOPBACK)
    narrow = group_results(RANKS, body, replace(LOOPBACK, wire=wire))
    np.testing.assert_array_equal(narrow[0], plain[0])


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_types_travel_as_they_are(dtype: Any) -> None:
    plain, narrow = mean_over("fp32", dtype=dtype), mean_over("int8", dtype=dtype)
    np.testing.assert_array_equal(plain[0][0], narrow[0][0])


@pytest.mark.parametrize("wire", WIRES)
def test_infinities_survive(wire: str) -> None:
    def body(group: Communicator) -> tuple[Floats, optireduce.Report]:
        values = np.ones(ELEMENTS, np.float32)
        if group.rank == 1:
            values[5] = np.inf
        return values, narrow_mean(group, values)

    for values, report in group_results(RANKS, body, replace(LOOPBACK, wire=wire)):
        assert not np.isfinite(values[5])
        assert values[200] == pytest.approx(1.0, rel=0.02)
        assert not report.non_finite or report.non_finite == (1,)


def test_ranks_that_disagree_about_the_wire_do_not_form_a_group() -> None:
    configs = [replace(LOOPBACK, wire="bf16"), LOOPBACK]
    store = MemoryStore()

    def join(rank: int) -> None:
        Communicator(rank, 2, store, configs[rank]).close()

    for error in outcomes(2, join):
        assert isinstance(error, optireduce.OptiReduceError)
        assert "wire" in str(error)


def test_auto_narrows_between_hosts_only() -> None:
    assert effective_wire("auto", 2) == "bf16"
    assert effective_wire("auto", 1) == "fp32"
    assert effective_wire("int8", 1) == "int8"


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(ConfigError, match=r"wire = 'fp8' is not usable.*'bf16'"):
        Config(wire="fp8")  # type: ignore[arg-type]


PAPERS = {"delivery": "best-effort", "hadamard": "on", "warmup_operations": 1_000}  # nothing is lost in these


def trained(rank: int, size: int, directory: str, wire: str, others: dict[str, Any]) -> tuple[Any, Any]:
    """Parameters after some steps, as float32 and narrowed."""
    found = []
    exact = replace(CONFIG, bounded=False)
    with process_group("gloo", rank, size, directory):
        for config in (exact, replace(exact, wire=wire, **others)):
            model, optimizer, session = trainer(config=config)
            for batch in batches(rank):
                step(model, optimizer, batch)
            session.close()
            found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    return found[0], found[1]


@pytest.mark.parametrize("others", [{}, PAPERS])
@pytest.mark.parametrize("wire", WIRES)
def test_replicas_stay_equal_and_near_those_of_fp32(
    on_ranks: OnRanks, wire: str, others: dict[str, Any]
) -> None:
    (exact, narrow), (_, other) = on_ranks(2, trained, wire, others)
    assert torch.equal(narrow, other)
    assert not torch.equal(narrow, exact)
    assert (narrow - exact).norm() / exact.norm() < 0.1


def test_lost_bytes_are_told_as_values() -> None:
    class Raw:
        holes = (("contribution", 1, 0, 64), ("decision", 2, 64, 128), ("decision", 0, 192, 64))

    values = np.zeros(62 * 3 + 5, np.float32)
    form = travelling("int8", values.ctypes.data, values.size, DTYPES["float32"], 1, IdleBuffers())
    assert lost_values(Raw(), form) == [(62, 124), (186, 5)]  # type: ignore[arg-type]
    plain = travelling("fp32", values.ctypes.data, values.size, DTYPES["float32"], 1, IdleBuffers())
    assert lost_values(Raw(), plain) == [(16, 32), (48, 16)]  # type: ignore[arg-type]


def test_memory_is_used_again_but_never_by_two() -> None:
    idle = IdleBuffers()
    first, second = idle.take(100), idle.take(100)
    assert first is not second
    idle.give(first)
    assert idle.take(50) is not first
    assert idle.take(100) is first


@pytest.mark.parametrize("name", ["int8_encode", "bfloat16_encode"])
def test_null_addresses_are_refused(name: str) -> None:
    arguments = (0, 5, 1, 0) if name == "int8_encode" else (0, 5, 0)
    with pytest.raises(ValueError, match="values is address 0"):
        getattr(_core, name)(*arguments)
