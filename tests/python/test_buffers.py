"""A wrong pointer or length handed to the engine is memory corruption: check what comes in."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from optireduce.buffers import as_buffer

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("name", "code"), [("float32", 0), ("float64", 1), ("float16", 3)])
def test_numpy(name: str, code: int) -> None:
    array = np.arange(7, dtype=name)
    buffer = as_buffer(array)
    assert (buffer.pointer, buffer.elements, buffer.dtype.code) == (array.ctypes.data, 7, code)
    assert buffer.copy_back is None


@pytest.mark.parametrize(("name", "code"), [("float32", 0), ("float64", 1), ("bfloat16", 2), ("float16", 3)])
def test_dlpack(name: str, code: int) -> None:
    tensor = torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
    buffer = as_buffer(tensor)
    assert (buffer.pointer, buffer.elements, buffer.dtype.code) == (tensor.data_ptr(), 12, code)
    assert buffer.copy_back is None


def test_ml_dtypes_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert as_buffer(np.ones(3, ml_dtypes.bfloat16)).dtype.code == 2


@pytest.mark.parametrize(
    "strided",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.arange(24, dtype=np.float64).reshape(4, 6).T,
        np.arange(9, dtype=np.float16)[::-1],
        torch.arange(24.0).reshape(4, 6)[1:, ::2],
        torch.arange(24).to(torch.bfloat16).reshape(4, 6).t(),
    ],
)
def test_non_contiguous_goes_through_a_copy(strided: Any) -> None:
    buffer = as_buffer(strided)
    raw = (ctypes.c_char * (buffer.elements * buffer.dtype.itemsize)).from_address(buffer.pointer)
    if isinstance(strided, np.ndarray):
        assert bytes(raw) == strided.tobytes()
    else:
        assert bytes(raw) == bytes(strided.contiguous().view(torch.uint8).flatten().tolist())
    before = np.array(strided.tolist())
    ctypes.memset(buffer.pointer, 0, len(raw))
    assert buffer.copy_back is not None
    assert np.any(before)
    buffer.copy_back()
    assert not np.any(np.array(strided.tolist()))


def test_offset_into_the_storage() -> None:
    tensor = torch.arange(10.0)[3:7]
    assert as_buffer(tensor).pointer == tensor.data_ptr()


@pytest.mark.parametrize("empty", [np.empty((0, 3), np.float32), torch.empty(2, 0)])
def test_empty(empty: Any) -> None:
    assert as_buffer(empty).elements == 0


def test_scalar_array() -> None:
    assert as_buffer(np.array(3.0)).elements == 1


@pytest.mark.parametrize(
    "wrong",
    [
        np.arange(3),
        np.ones(3, ">f4"),
        np.ones(3, np.complex64),
        torch.arange(3),
        torch.ones(3, dtype=torch.bool),
    ],
)
def test_wrong_dtype(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype .*float32, float64, bfloat16, float16"):
        as_buffer(wrong)


def test_wrong_type() -> None:
    with pytest.raises(TypeError, match="list"):
        as_buffer([1.0, 2.0])


def test_read_only() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        as_buffer(array)


def test_other_device() -> None:
    class OnGpu:
        device = "cuda:0"

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self) -> None:
            raise AssertionError("must not be asked for")

    with pytest.raises(ValueError, match="cuda:0"):
        as_buffer(OnGpu())
