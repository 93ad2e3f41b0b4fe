"""The randomized Hadamard transform by its definition, in float64: what cpp/kernels/hadamard.h promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Lost = Sequence[tuple[int, int]]

LINE = 16  # floats in a cache line
SMALLEST_BLOCK = 8


@dataclass(frozen=True)
class Layout:
    """Coefficient j of block b is float j * stride + b on the wire."""

    elements: int
    block: int
    stride: int

    @property
    def blocks(self) -> int:
        return -(-self.elements // self.block)

    @property
    def encoded_elements(self) -> int:
        return self.block * self.stride


def layout(elements: int, block: int = 1024) -> Layout:
    """The stride is the number of blocks, or an odd number of cache lines where that is nearly the same; two
    lines more next to a power of two."""
    while block > SMALLEST_BLOCK and block // 2 >= elements:
        block //= 2
    blocks = -(-elements // block)
    odd = -(-blocks // LINE) | 1
    next_to_power = (odd - 1).bit_count() == 1
    candidates = [(odd + 2) * LINE] * next_to_power + [odd * LINE]
    cheap = [stride for stride in candidates if (stride - blocks) * 64 <= blocks]
    return Layout(elements, block, [*cheap, blocks][0])


def signs(shape: Layout, seed: int) -> Doubles:
    """A row for each block. 128 values have the bits of two numbers of splitmix64, seen as four of 32 bits:
    value i has bit 31 - i / 4 of number i % 4."""
    draws = max(1, shape.block // 128)
    index = np.arange(2 * draws * shape.blocks, dtype=np.uint64)
    start = _mix(np.array([seed], np.uint64))
    words = _mix(start + index * np.uint64(0x9E3779B97F4A7C15)).view("<u4").reshape(-1, 1, 4)
    shifts = np.arange(31, -1, -1, dtype=np.uint32).reshape(1, 32, 1)
    bits = ((words >> shifts) & np.uint32(1)).reshape(shape.blocks, draws * 128)
    return 1.0 - 2.0 * bits[:, : shape.block].astype(np.float64)


def encode(values: npt.ArrayLike, shape: Layout, seed: int) -> Doubles:
    """The floats on the wire."""
    blocks = np.zeros(shape.blocks * shape.block)
    blocks[: shape.elements] = np.asarray(values, np.float64)
    wire = np.zeros((shape.block, shape.stride))
    wire[:, : shape.blocks] = transform(blocks.reshape(-1, shape.block) * signs(shape, seed)).T
    return wire.ravel()


def decode(encoded: npt.ArrayLike, shape: Layout, seed: int, lost: Lost = (), cap: float = 2.0) -> Doubles:
    """The values; every block scaled up by the share of it that came, at most by ``cap``."""
    wire = np.asarray(encoded, np.float64).reshape(shape.block, shape.stride)[:, : shape.blocks]
    received = np.ones(shape.encoded_elements)
    for first, count in lost:
        received[first : first + count] = 0
    share = received.reshape(shape.block, shape.stride)[:, : shape.blocks].mean(axis=0)
    scale = np.where(share > 0, np.minimum(cap, 1 / np.maximum(share, 1e-30)), 0.0)
    blocks = transform(wire.T) * signs(shape, seed) * scale[:, None]
    return blocks.ravel()[: shape.elements]


def transform(rows: Doubles) -> Doubles:
    """The orthonormal Walsh-Hadamard transform of each row: as a product of one 2x2 matrix for each bit."""
    block = rows.shape[1]
    result: Doubles = rows / np.sqrt(block)
    for bit in range(block.bit_length() - 1):
        pairs = result.reshape(-1, 2, 1 << bit)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
    return result.reshape(rows.shape)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
