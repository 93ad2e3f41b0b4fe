"""Float32 that travels narrower than it is: a half or a quarter of the bytes, and of the time on a slow link.

Contributions are rounded once on their way to the owner of their shard. The owner adds them in float32 to its
own, which is not rounded, and rounds the result once; it keeps what it sends, so that all ranks get the same.
The engine rounds values when it sends them, and widens them when they arrive.
"""

from __future__ import annotations

import threading
from typing import Any, Literal, TypeAlias

import numpy as np

from . import _core
from .dtypes import DTYPES, DType

Wire = Literal["fp32", "bf16", "int8", "auto"]
Lost: TypeAlias = list[tuple[int, int]]
"""Runs of values whose result did not come: first and number."""

_Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_INT8_BLOCK = DType(4, _core.INT8_BLOCK_BYTES)
_MOST_IDLE = 16  # buffers kept for later; more operations than that are rarely in flight


class Travelling:
    """What one operation reduces: the caller's memory itself, as it is."""

    wide = 0  # the caller's float32, which the engine rounds and writes the result to; 0: they travel
    values = 0  # number of these
    seed = 0  # for rounding at random
    values_each = 1  # values of the caller in one element

    def __init__(self, pointer: int, elements: int, dtype: DType) -> None:
        self.pointer, self.elements, self.dtype = pointer, elements, dtype

    def release(self) -> None:
        """Its memory is not needed any more. Once, at the end."""

    def values_of(self, begin: int, count: int) -> tuple[int, int]:
        """The values, first and number, that so many bytes from there stand for; a last block may be partly
        empty."""
        first = begin // self.dtype.itemsize * self.values_each
        most = count // self.dtype.itemsize * self.values_each
        return first, min(most, (self.values or self.elements) - first)


class Narrow(Travelling):
    """Float32 values that travel in fewer bytes, in memory of their own."""

    def __init__(
        self, source: int, values: int, dtype: DType, values_each: int, seed: int, idle: IdleBuffers
    ) -> None:
        elements = -(-values // values_each)
        self._memory, self._idle = idle.take(elements * dtype.itemsize), idle
        super().__init__(int(self._memory.ctypes.data), elements, dtype)
        self.wide, self.values, self.values_each, self.seed = source, values, values_each, seed

    def release(self) -> None:
        self._idle.give(self._memory)


class Following(Travelling):
    """Nothing, in the form in which others' values travel: zeros in memory of its own."""

    def __init__(self, elements: int, dtype: int, values: int) -> None:
        kind = next(each for each in (*DTYPES.values(), _INT8_BLOCK) if each.code == dtype)
        self._memory = np.zeros(elements * kind.itemsize, np.uint8)
        super().__init__(int(self._memory.ctypes.data), elements, kind)
        if values and kind != DTYPES["float32"]:
            self._wide = np.zeros(values, np.float32)
            self.wide, self.values = int(self._wide.ctypes.data), values


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


def effective_wire(wire: Wire, hosts: int) -> Wire:
    """What ``auto`` means: between hosts the network is slower than rounding is, on one host it is not."""
    return ("bf16" if hosts > 1 else "fp32") if wire == "auto" else wire


def travelling(
    wire: Wire, pointer: int, elements: int, dtype: DType, seed: int, idle: IdleBuffers
) -> Travelling:
    """The form in which memory travels. Only float32 is narrowed."""
    if dtype != DTYPES["float32"] or wire not in ("bf16", "int8"):
        return Travelling(pointer, elements, dtype)
    if wire == "bf16":  # rounded to nearest, halves to even
        return Narrow(pointer, elements, DTYPES["bfloat16"], 1, 0, idle)
    # Blocks with a common scale, rounded at random: right on average.
    return Narrow(pointer, elements, _INT8_BLOCK, _core.INT8_BLOCK_VALUES, seed, idle)


def lost_values(raw: _core.Report, form: Travelling) -> Lost:
    """Best effort only: what did not come back, in values of the caller's memory."""
    return [form.values_of(begin, count) for stage, _, begin, count in raw.holes if stage != "contribution"]
