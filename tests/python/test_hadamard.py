"""The core's Hadamard transform against numpy, and against loss of every kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hadamard_reference as reference
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hadamard_reference import Layout, Lost

from optireduce import _core

Floats = npt.NDArray[np.float32]

CAP = 2.0
ROUNDING = 1e-6  # of a block's norm: ten levels of additions in float32
DTYPES: dict[str, tuple[int, Any, float]] = {  # code, numpy's type, half a unit of the last place
    "float32": (0, np.float32, 2.0**-24),
    "bfloat16": (2, ml_dtypes.bfloat16, 2.0**-8),
    "float16": (3, np.float16, 2.0**-11),
}
SIZES = sorted(
    {*range(1, 71), *(1000, 5555, 33_333, 123_457)} | {2**p + d for p in range(7, 21) for d in (-1, 0, 1)}
)


def encode(values: npt.NDArray[Any], seed: int, block: int = 1024, code: int = 0) -> Floats:
    encoded = np.full(_core.hadamard_encoded_elements(values.size, block), np.nan, np.float32)
    _core.hadamard_encode(code, values.ctypes.data, values.size, block, seed, encoded.ctypes.data)
    return encoded


def decode(
    encoded: Floats,
    elements: int,
    seed: int,
    lost: Lost = (),
    block: int = 1024,
    code: int = 0,
    dtype: Any = np.float32,
    cap: float = CAP,
) -> npt.NDArray[Any]:
    values = np.zeros(elements, dtype)
    _core.hadamard_decode(
        code, encoded.ctypes.data, elements, block, seed, list(lost), cap, values.ctypes.data
    )
    return values


def through_loss(values: Floats, seed: int, lost: Lost) -> Floats:
    encoded = encode(values, seed)
    for first, count in lost:
        encoded[first : first + count] = 0
    return decode(encoded, values.size, seed, lost)


def gradient(elements: int, seed: int = 1) -> Floats:
    """Values of very different size, none too small for float16."""
    random = np.random.default_rng(seed)
    magnitudes = np.clip(np.exp(2 * random.standard_normal(elements)), 1e-3, 1e4)
    values: Floats = (magnitudes * random.choice([-1.0, 1.0], elements)).astype(np.float32)
    return values


def relative_error(values: npt.ArrayLike, exact: Floats) -> float:
    difference = np.asarray(values, np.float64) - exact
    return float((difference**2).sum() / (exact.astype(np.float64) ** 2).sum())


def block_norms(values: npt.ArrayLike, shape: Layout) -> reference.Doubles:
    padded = np.zeros(shape.blocks * shape.block)
    padded[: shape.elements] = np.asarray(values, np.float64)
    norms: reference.Doubles = np.linalg.norm(padded.reshape(-1, shape.block), axis=1)
    return norms


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_is_the_reference_and_comes_back(dtype: str) -> None:
    code, numpy_type, half_unit = DTYPES[dtype]
    for elements in SIZES:
        shape = reference.layout(elements)
        values = gradient(elements, elements).astype(numpy_type)
        encoded = encode(values, elements, code=code)
        assert encoded.size == shape.encoded_elements, elements
        expected = reference.encode(values, shape, elements)
        tolerance = ROUNDING * block_norms(values, shape)
        error = np.zeros((shape.block, shape.stride))
        error[:, : shape.blocks] = tolerance
        assert (np.abs(encoded - expected) <= error.ravel()).all(), elements
        exact = values.astype(np.float64)
        decoded = decode(encoded, elements, elements, code=code, dtype=numpy_type).astype(np.float64)
        near = np.repeat(tolerance, shape.block)[:elements] + half_unit * np.abs(exact)
        assert (np.abs(decoded - exact) <= near).all(), elements


@pytest.mark.parametrize("block", [8, 16, 64, 128, 256, 512, 2048, 4096, 16384])
def test_other_blocks(block: int) -> None:
    values = gradient(30_001)
    shape = reference.layout(values.size, block)
    encoded = encode(values, 3, block)
    np.testing.assert_allclose(encoded, reference.encode(values, shape, 3), rtol=0, atol=2e-3)
    lost = [(5000, 300), (20_000, 4000)]
    for first, count in lost:
        encoded[first : first + count] = 0
    expected = reference.decode(encoded, shape, 3, lost)
    np.testing.assert_allclose(decode(encoded, values.size, 3, lost, block), expected, rtol=0, atol=4e-3)


def packets(encoded: int, share: float, burst: int) -> Iterable[tuple[int, int]]:
    """Bursts of packets of 350 floats, about ``share`` of all."""
    random = np.random.default_rng(burst)
    first = 0
    while first < encoded:
        is_lost = random.random() < share / burst
        count = min((burst if is_lost else 1) * 350, encoded - first)
        if is_lost:
            yield first, count
        first += count


@pytest.mark.parametrize("kind", ["random", "bursts", "tail", "one sender of eight"])
def test_the_error_is_the_lost_share(kind: str) -> None:
    values = gradient(400_000)
    encoded = reference.layout(values.size).encoded_elements
    lost = {
        "random": list(packets(encoded, 0.05, 1)),
        "bursts": list(packets(encoded, 0.05, 8)),
        "tail": [(encoded - encoded // 10, encoded // 10)],
        "one sender of eight": [(3 * (encoded // 8), encoded // 8)],
    }[kind]
    share = sum(count for _, count in lost) / encoded
    errors = [relative_error(through_loss(values, seed, lost), values) for seed in range(4)]
    assert np.mean(errors) == pytest.approx(share / (1 - share), rel=0.1)


def test_the_mean_over_many_seeds_is_right_where_the_tail_is_always_lost() -> None:
    values = np.sort(np.abs(gradient(10_000)))
    encoded = reference.layout(values.size).encoded_elements
    lost = [(encoded - encoded // 10, encoded // 10)]
    mean = np.mean([through_loss(values, seed, lost) for seed in range(400)], axis=0, dtype=np.float64)
    assert relative_error(mean, values) < 0.002


def test_a_lost_tail_with_all_the_large_values_hurts_ten_times_less() -> None:
    values = gradient(100_000)
    values[95_000:] *= 50
    raw = values.copy()
    raw[95_000:] = 0
    encoded = reference.layout(values.size).encoded_elements
    rotated = through_loss(values, 1, [(encoded - encoded // 20, encoded // 20)])
    assert 10 * relative_error(rotated, values) < relative_error(raw, values)


def test_seeds_decide_the_signs() -> None:
    values = gradient(5000)
    assert (encode(values, 7) == encode(values, 7)).all()
    assert (encode(values, 7) != encode(values, 8)).mean() > 0.9
    wrong = decode(encode(values, 7), values.size, 8)
    assert relative_error(wrong, values) > 1.0


def test_a_block_is_scaled_up_at_most_by_the_cap_and_is_zero_if_nothing_came() -> None:
    values = gradient(4096)
    encoded = encode(values, 1)
    lost = [(encoded.size // 4, 3 * encoded.size // 4)]
    encoded[lost[0][0] :] = 0
    once = decode(encoded, values.size, 1)
    for cap, factor in ((1.0, 1), (2.0, 2), (4.0, 4), (9.0, 4)):
        assert (decode(encoded, values.size, 1, lost, cap=cap) == factor * once).all()
    encoded[:] = 0
    assert not decode(encoded, values.size, 1, [(0, encoded.size)]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": 1}, "dtype is 1, must be one of 0 .float32., 2 .bfloat16., 3 .float16."),
        ({"values": 0}, "values is address 0, must point to memory for 100 elements"),
        ({"out": 0}, "out is address 0, must point to memory for 128 elements"),
        ({"out": 3}, "out is address 3, must be a multiple of 4"),
        ({"block": 100}, "block is 100, must be a power of two from 8 to 16384"),
    ],
)
def test_misuse_of_encode_is_refused_by_name(change: dict[str, int], message: str) -> None:
    values, out = np.zeros(100, np.float32), np.zeros(128, np.float32)
    arguments = {
        "dtype": 0, "values": values.ctypes.data, "elements": 100, "block": 1024, "seed": 1,
        "out": out.ctypes.data,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        _core.hadamard_encode(**(arguments | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": 9}, "dtype is 9, must be one of"),
        ({"encoded": 2}, "encoded is address 2, must be a multiple of 4"),
        ({"out": 0}, "out is address 0, must point to memory for 100 elements"),
        ({"lost": [(120, 9)]}, "a lost range is 9 floats from 120, must be within the 128 encoded floats"),
        (
            {"lost": [(0, 128), (0, 1)]},
            "129 coefficients of one block, which has 128: ranges must not overlap",
        ),
        ({"cap": 0.5}, "cap is 0.500000, must be at least 1"),
    ],
)
def test_misuse_of_decode_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    encoded, out = np.zeros(128, np.float32), np.zeros(100, np.float32)
    arguments: dict[str, Any] = {
        "dtype": 0, "encoded": encoded.ctypes.data, "elements": 100, "block": 1024, "seed": 1,
        "lost": [], "cap": CAP, "out": out.ctypes.data,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        _core.hadamard_decode(**(arguments | change))
