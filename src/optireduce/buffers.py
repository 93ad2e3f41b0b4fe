"""From what users hand over (NumPy arrays, DLPack CPU tensors) to a pointer the engine may write to.

No torch here: a torch tensor is one of many things that speak DLPack. The result is written in place; a
non-contiguous buffer is reduced in a contiguous copy that is written back at the end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DTYPES, DType

_SUPPORTED = ", ".join(DTYPES)
_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}  # stand-ins to move elements NumPy has no type for


@dataclass(frozen=True)
class Buffer:
    """Contiguous memory for one operation."""

    pointer: int
    elements: int
    dtype: DType
    keep_alive: object
    copy_back: Callable[[], None] | None


def as_buffer(data: Any) -> Buffer:
    """The memory of an array; TypeError or ValueError says what is wrong with it. A Buffer is one already."""
    if isinstance(data, Buffer):
        return data
    if isinstance(data, np.ndarray):
        return _from_numpy(data)
    if hasattr(data, "__dlpack__"):
        return _from_dlpack(data)
    raise TypeError(
        f"buffer is a {type(data).__name__}: it must be a NumPy array or a CPU tensor that speaks DLPack"
    )


def _from_numpy(array: npt.NDArray[Any]) -> Buffer:
    dtype = DTYPES.get(array.dtype.name)  # ml_dtypes.bfloat16 calls itself so too
    if dtype is None or not array.dtype.isnative:
        raise TypeError(
            f"dtype {array.dtype} is not supported: it must be one of {_SUPPORTED} in native byte order"
        )
    if not array.flags.writeable:
        raise ValueError("the array is read-only: the result is written in place, pass a writable array")
    return _contiguous(array, dtype, array)


def _contiguous(array: npt.NDArray[Any], dtype: DType, owner: object) -> Buffer:
    if array.flags.c_contiguous:
        return Buffer(array.ctypes.data, array.size, dtype, owner, None)
    copy = np.ascontiguousarray(array)

    def copy_back() -> None:
        array[...] = copy

    return Buffer(copy.ctypes.data, copy.size, dtype, (owner, copy), copy_back)


# DLPack (github.com/dmlc/dlpack, include/dlpack/dlpack.h). The capsule frees the tensor when it is collected.
_CPU_DEVICES = {1, 3, 11}  # kDLCPU, kDLCUDAHost, kDLROCMHost: host memory
_DTYPE_CODES = {(2, 32): "float32", (2, 64): "float64", (2, 16): "float16", (4, 16): "bfloat16"}
_READ_ONLY_FLAG = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedTensor(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(data: Any) -> Buffer:
    if hasattr(data, "__dlpack_device__"):
        _require_cpu(int(data.__dlpack_device__()[0]), data)
    capsule = _export(data)
    tensor = _tensor_of(capsule)
    _require_cpu(tensor.device_type, data)
    name = _DTYPE_CODES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        what = getattr(data, "dtype", f"DLPack {tensor.code}/{tensor.bits}x{tensor.lanes}")
        raise TypeError(f"dtype {what} is not supported: it must be one of {_SUPPORTED}")
    return _contiguous(_view(tensor, DTYPES[name]), DTYPES[name], (data, capsule))


def _require_cpu(device_type: int, data: Any) -> None:
    if device_type not in _CPU_DEVICES:
        device = getattr(data, "device", f"DLPack device {device_type}")
        raise ValueError(
            f"the buffer is on {device}: copy it to the CPU, reduce the copy, and copy the result back"
        )


def _export(data: Any) -> Any:
    try:
        return data.__dlpack__(max_version=(1, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        return data.__dlpack__()


def _tensor_of(capsule: Any) -> _Tensor:
    if not _is_valid(capsule, b"dltensor_versioned"):
        return _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    versioned = _VersionedTensor.from_address(_get_pointer(capsule, b"dltensor_versioned"))
    if versioned.flags & _READ_ONLY_FLAG:
        raise ValueError("the buffer is read-only: the result is written in place, pass a writable one")
    tensor = versioned.tensor
    assert isinstance(tensor, _Tensor)
    return tensor


def _view(tensor: _Tensor, dtype: DType) -> npt.NDArray[Any]:
    """The tensor's memory as an array of unsigned integers of the same width: bit patterns are all we
    move."""
    shape = tuple(tensor.shape[: tensor.ndim])
    unit = np.dtype(_UNSIGNED[dtype.itemsize])
    if 0 in shape:
        return np.empty(shape, unit)
    memory = (ctypes.c_char * dtype.itemsize).from_address(tensor.data + tensor.byte_offset)
    first = np.frombuffer(memoryview(memory), unit)
    strides = [step * dtype.itemsize for step in tensor.strides[: tensor.ndim]] if tensor.strides else None
    if strides is None:
        strides = list(np.empty((1,) * len(shape), unit).strides)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
    return np.lib.stride_tricks.as_strided(first, shape, strides)
