"""Float32 that travels narrower than it is: a half or a quarter of the bytes, and of the time on a slow link.

Contributions are rounded once on their way to the owner of their shard, who adds them to its own, which is
not rounded, in float32, and the result once on its way back; the owner keeps what it sends, so that all ranks
get the same. The engine rounds what it sends when it sends it, and widens what comes when it comes.
"""

from __future__ import annotations

import threading
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from . import _core
from .dtypes import DTYPES, DType

Wire = Literal["fp32", "bf16", "int8", "auto"]
Lost: TypeAlias = list[tuple[int, int]]
"""Runs of values whose result did not come: first and number."""

_Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_INT8_BLOCK = DType(4, _core.INT8_BLOCK_BYTES)
_MOST_IDLE = 16  # buffers kept for later; more operations than that are rarely in flight


class Travelling(Protocol):
    """What one operation reduces in place of the caller's memory."""

    dtype: DType
    elements: int
    wide: int
    """The caller's float32, which the engine rounds and gets the result itself; 0: they are what travels."""
    values: int
    """Of them."""
    seed: int
    """For rounding at random."""

    @property
    def pointer(self) -> int:
        """Of its first element."""
        ...

    def narrow(self) -> None:
        """Round the caller's values: for those who reduce without the engine."""
        ...

    def widen(self) -> None:
        """Write the result back to the caller's memory, for the same."""
        ...

    def release(self) -> None:
        """Its memory is not needed any more. Once, at the end."""
        ...

    def values_of(self, begin: int, count: int) -> tuple[int, int]:
        """The values, first and number, that so many bytes from there stand for."""
        ...


class BFloat16:
    """Half the bytes: the exponent of float32, 8 bits of precision, rounded to nearest, halves to even."""

    dtype = DTYPES["bfloat16"]
    seed = 0

    def __init__(self, source: int, values: int, idle: IdleBuffers) -> None:
        self.wide, self.values, self._idle = source, values, idle
        self.elements = values
        self._memory = idle.take(values * self.dtype.itemsize)

    @property
    def pointer(self) -> int:
        """Of the first bfloat16."""
        return int(self._memory.ctypes.data)

    def narrow(self) -> None:
        """To nearest."""
        _core.bfloat16_encode(self.wide, self.values, self.pointer)

    def widen(self) -> None:
        """Exact: every bfloat16 is a float32."""
        _core.bfloat16_decode(self.pointer, self.values, self.wide)

    def release(self) -> None:
        """For the next one."""
        self._idle.give(self._memory)

    def values_of(self, begin: int, count: int) -> tuple[int, int]:
        """Two bytes each."""
        return begin // self.dtype.itemsize, count // self.dtype.itemsize


class Int8:
    """About a quarter: blocks of 62 numbers of 8 bits with a common scale, rounded at random, right on
    average."""

    dtype = _INT8_BLOCK

    def __init__(self, source: int, values: int, seed: int, idle: IdleBuffers) -> None:
        self.wide, self.values, self.seed, self._idle = source, values, seed, idle
        self.elements = -(-values // _core.INT8_BLOCK_VALUES)
        self._memory = idle.take(self.elements * _core.INT8_BLOCK_BYTES)

    @property
    def pointer(self) -> int:
        """Of the first block."""
        return int(self._memory.ctypes.data)

    def narrow(self) -> None:
        """At random."""
        _core.int8_encode(self.wide, self.values, self.seed, self.pointer)

    def widen(self) -> None:
        """What the blocks stand for; those that were lost are zeros."""
        _core.int8_decode(self.pointer, self.values, self.wide)

    def release(self) -> None:
        """For the next one."""
        self._idle.give(self._memory)

    def values_of(self, begin: int, count: int) -> tuple[int, int]:
        """Whole blocks; the last one may hold fewer."""
        first = begin // _core.INT8_BLOCK_BYTES * _core.INT8_BLOCK_VALUES
        most = count // _core.INT8_BLOCK_BYTES * _core.INT8_BLOCK_VALUES
        return first, min(most, self.values - first)


class AsItIs:
    """No narrowing: the caller's memory itself."""

    wide = values = seed = 0

    def __init__(self, pointer: int, elements: int, dtype: DType) -> None:
        self.pointer, self.elements, self.dtype = pointer, elements, dtype

    def narrow(self) -> None:
        """It travels as it is."""

    def widen(self) -> None:
        """It never was narrow."""

    def release(self) -> None:
        """It is the caller's."""

    def values_of(self, begin: int, count: int) -> tuple[int, int]:
        """One for each element."""
        return begin // self.dtype.itemsize, count // self.dtype.itemsize


class IdleBuffers:
    """Memory of operations that have ended, for those to come: fresh pages cost more than rounding."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Memory] = []

    def take(self, size: int) -> _Memory:
        """So many bytes, with whatever they hold."""
        with self._lock:
            for index, memory in enumerate(self._idle):
                if memory.size == size:
                    return self._idle.pop(index)
        return np.empty(size, np.uint8)

    def give(self, memory: _Memory) -> None:
        """It is not needed any more."""
        with self._lock:
            self._idle.append(memory)
            del self._idle[:-_MOST_IDLE]


def effective_wire(wire: Wire, hosts: int, gradient: bool) -> Wire:
    """What ``auto`` means: between hosts the network is slower than rounding is, on one host it is not. And
    what is not certainly a gradient may be parameters, which training changes by less than bfloat16 shows."""
    if wire != "auto":
        return wire
    return "bf16" if hosts > 1 and gradient else "fp32"


def travelling(
    wire: Wire, pointer: int, elements: int, dtype: DType, seed: int, idle: IdleBuffers
) -> Travelling:
    """The form in which memory travels. Only float32 is narrowed."""
    narrows = dtype == DTYPES["float32"]
    if wire == "bf16" and narrows:
        return BFloat16(pointer, elements, idle)
    if wire == "int8" and narrows:
        return Int8(pointer, elements, seed, idle)
    return AsItIs(pointer, elements, dtype)


def lost_values(raw: _core.Report, form: Travelling) -> Lost:
    """What did not come back, in values of the caller's memory."""
    return [form.values_of(begin, count) for stage, _, begin, count in raw.holes if stage == "reduced"]
