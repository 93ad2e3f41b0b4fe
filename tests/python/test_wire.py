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
from ranks import LOOPBACK, MemoryStore, group_results, outcomes
from test_replicas import QUIET, flat, step, trainer
from torch_ranks import process_group

import optireduce
from optireduce import Communicator, Config, ConfigError, _core
from optireduce.buffers import Buffer
from optireduce.dtypes import DTYPES
from optireduce.simulation import Doom, Network, Operation, Simulation
from optireduce.wire import AsItIs, IdleBuffers, Int8, effective_wire, lost_values, travelling

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
        return values, group.all_reduce(values, op="mean")

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
    shard = -(-2 * ELEMENTS // RANKS // 64) * 64 // 2  # values of whole cache lines
    for values, report in mean_over("bf16"):
        assert report.bytes == 2 * ELEMENTS
        for index in range(RANKS):
            part = slice(index * shard, (index + 1) * shard)
            owner = (index + report.operation) % RANKS
            np.testing.assert_array_equal(values[part], bf16_mean_by(owner)[part])


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("wire", WIRES)
def test_all_ranks_get_the_same_bits_at_every_length(wire: str, ranks: int) -> None:
    lengths = (1, 61, 62, 63, 64 * ranks, 30_000, 32_737 * ranks + 1, 1_100_003)

    def body(group: Communicator) -> list[Floats]:
        found = [contribution(group.rank, length) for length in lengths]
        for values in found:
            group.all_reduce(values, op="mean")
        return found

    found = group_results(ranks, body, replace(LOOPBACK, wire=wire, bounded_min_bytes=0))
    for number, length in enumerate(lengths):
        exact = np.mean([contribution(rank, length) for rank in range(ranks)], axis=0)
        for rank in range(ranks):
            np.testing.assert_array_equal(found[rank][number], found[0][number])
        assert np.abs(found[0][number] - exact).max() < 0.15


@pytest.mark.parametrize("wire", WIRES)
def test_an_operation_that_fails_says_so_and_the_next_one_is_right(wire: str) -> None:
    def body(group: Communicator) -> Floats:
        with pytest.raises(optireduce.MismatchError):
            group.all_reduce(np.ones(ELEMENTS + 62 * group.rank, np.float32), op="mean")
        values = np.full(ELEMENTS, 254.0 * group.rank, np.float32)  # no form rounds it
        group.all_reduce(values, op="mean")
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
            group.all_reduce(values, op="mean")
            total += values
        return np.asarray(total / rounds, np.float32)

    config = replace(LOOPBACK, wire="int8", bounded_min_bytes=0, warmup_operations=rounds)  # none is lost
    found = group_results(RANKS, body, config)
    error = found[0] - exact_mean()
    spread = 0.6 * 4 / 127 / np.sqrt(rounds)  # of one entry's mean: both roundings together, at most
    assert np.abs(error.mean()) < 6 * spread / np.sqrt(ELEMENTS)
    assert np.abs(error).max() < 7 * spread


@pytest.mark.parametrize("wire", WIRES)
def test_what_must_be_exact_is_not_narrowed(wire: str) -> None:
    def body(group: Communicator) -> list[Any]:
        with optireduce.exact():
            long = contribution(group.rank)
            group.all_reduce(long, op="mean")
        short = contribution(group.rank, 100)
        group.all_reduce(short, op="mean")
        return [long, short]

    plain = group_results(RANKS, body, LOOPBACK)
    narrow = group_results(RANKS, body, replace(LOOPBACK, wire=wire))
    for expected, values in zip(plain[0], narrow[0], strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_types_travel_as_they_are(dtype: Any) -> None:
    plain, narrow = mean_over("fp32", dtype=dtype), mean_over("int8", dtype=dtype)
    np.testing.assert_array_equal(plain[0][0], narrow[0][0])


@pytest.mark.parametrize("wire", WIRES)
def test_non_contiguous_arrays_and_infinities_survive(wire: str) -> None:
    def body(group: Communicator) -> tuple[Floats, optireduce.Report]:
        values = np.ones((ELEMENTS, 2), np.float32)[:, 0]
        if group.rank == 1:
            values[5] = np.inf
        return values, group.all_reduce(values, op="mean")

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


def test_auto_narrows_gradients_between_hosts_only() -> None:
    assert effective_wire("auto", 2, gradient=True) == "bf16"
    assert effective_wire("auto", 1, gradient=True) == "fp32"
    assert effective_wire("auto", 2, gradient=False) == "fp32"
    assert effective_wire("int8", 1, gradient=False) == "int8"


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(ConfigError, match=r"wire = 'fp8' is not usable.*'bf16'"):
        Config(wire="fp8")  # type: ignore[arg-type]


def trained(rank: int, size: int, directory: str, wire: str, hadamard: str) -> tuple[Any, Any]:
    """Parameters after some steps, as float32 and narrowed. Without a deadline, at which a busy machine may
    lose something."""
    found, steps = [], 12
    unhurried = replace(QUIET, warmup_steps=steps)
    with process_group("gloo", rank, size, directory):
        for config in (unhurried, replace(unhurried, wire=wire, hadamard=hadamard)):
            model, optimizer, session = trainer(config)
            for number in range(steps):
                step(rank, number, model, optimizer)
            session.close()
            found.append(flat(model))
    return found[0], found[1]


@pytest.mark.parametrize("hadamard", ["off", "on"])
@pytest.mark.parametrize("wire", WIRES)
def test_replicas_stay_equal_and_near_those_of_fp32(on_ranks: OnRanks, wire: str, hadamard: str) -> None:
    (exact, narrow), (_, other) = on_ranks(2, trained, wire, hadamard)
    assert torch.equal(narrow, other)
    assert not torch.equal(narrow, exact)
    assert (narrow - exact).norm() / exact.norm() < 0.01


def simulated(wire: str, share: float, operations: int) -> tuple[Floats, list[Floats], int]:
    """The mean's error summed over operations on the same stream, of each rank; and corrected bytes."""
    ranks, elements = 4, 62 * 600
    simulation = Simulation(Network(ranks, seed=3, doom=Doom("random", share, "everything")))
    idle, corrected = IdleBuffers(), 0
    totals = [np.zeros(elements) for _ in range(ranks)]
    exact = np.zeros(elements)
    for number in range(operations):
        rows = [
            np.random.default_rng(100 * number + rank).standard_normal(elements).astype(np.float32)
            for rank in range(ranks)
        ]
        exact += np.mean(rows, axis=0)
        forms = [
            travelling(wire, row.ctypes.data, elements, DTYPES["float32"], number * ranks + rank, idle)  # type: ignore[arg-type]
            for rank, row in enumerate(rows)
        ]
        for form in forms:
            form.narrow()
        buffers = [Buffer(form.pointer, form.elements, form.dtype, form, None) for form in forms]
        starts = [2e-3] * ranks
        operation = Operation(buffers, "mean", start_seconds=starts, bounded=True, stream=1)
        for report in simulation.run([operation])[0]:
            assert report is not None
            corrected += report.corrected_bytes
        for form, row, total in zip(forms, rows, totals, strict=True):
            form.widen()
            form.release()
            total += row
    return np.asarray(exact, np.float32), [np.asarray(total, np.float32) for total in totals], corrected


@pytest.mark.parametrize("wire", WIRES)
def test_what_comes_late_is_added_in_narrow_form_too(wire: str) -> None:
    """Over many operations nothing is missing: ranks agree but for rounding and the last operation."""
    _, totals, corrected = simulated(wire, 0.05, 40)
    assert corrected > 0
    apart = np.linalg.norm(totals[0] - totals[1]) / np.linalg.norm(totals[0])
    lost_for_good = simulated("fp32", 0.05, 40)[1]
    fp32_apart = np.linalg.norm(lost_for_good[0] - lost_for_good[1]) / np.linalg.norm(lost_for_good[0])
    assert apart < fp32_apart + 0.02


def test_lost_bytes_are_told_as_values() -> None:
    class Raw:
        holes = (("contributions", 1, 0, 64), ("reduced", 2, 64, 128), ("reduced", 0, 192, 64))

    values = np.zeros(62 * 3 + 5, np.float32)
    form = Int8(values.ctypes.data, values.size, 1, IdleBuffers())
    assert lost_values(Raw(), form) == [(62, 124), (186, 5)]  # type: ignore[arg-type]
    plain = AsItIs(values.ctypes.data, values.size, DTYPES["float32"])
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
