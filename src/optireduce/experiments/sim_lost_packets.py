"""One receiver's estimate of a gradient of which packets are missing, raw and by the package's own Hadamard
kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from ..dtypes import DTYPES

PACKET = 32  # floats
BLOCK, CAP = 1024, 2.0  # as in optireduce.hadamard, which needs torch; a test compares them
_BURST_PACKETS = 8.0  # mean length of a run, as the simulator's

Floats: TypeAlias = npt.NDArray[np.float32]
Lost: TypeAlias = npt.NDArray[np.bool_]
"""For each packet, in the order of sending."""
Estimate: TypeAlias = Callable[[Floats, Lost, int], Floats]


def lost_packets(pattern: str, share: float, packets: int, rng: np.random.Generator) -> Lost:
    """``share`` of them on average: any ("random"), the last ones ("tail"), or runs ("bursts")."""
    if pattern == "random":
        return rng.random(packets) < share
    if pattern == "tail":
        count = int(share * packets + rng.random())
        return np.arange(packets) >= packets - count
    return _bursts(share, packets, rng)


def _bursts(share: float, packets: int, rng: np.random.Generator) -> Lost:
    """Geometric runs, of lost packets and of others in turn."""
    lost = np.zeros(packets, bool)
    mean_gap = _BURST_PACKETS * (1 - share) / share
    striking, at = bool(rng.random() < share), 0
    while at < packets:
        length = int(rng.geometric(1 / (_BURST_PACKETS if striking else mean_gap)))
        lost[at : at + length] = striking
        striking, at = not striking, at + length
    return lost


def raw(gradient: Floats, lost: Lost, seed: int) -> Floats:
    """Zeros where nothing came. There is nothing to seed."""
    return np.where(np.repeat(lost, PACKET), np.float32(0), gradient)


def hadamard(gradient: Floats, lost: Lost, seed: int) -> Floats:
    """Encoded with signs of this seed, zeros where nothing came, decoded and scaled up by what is missing."""
    code, elements = DTYPES["float32"].code, len(gradient)
    wire = np.empty(_core.hadamard_encoded_elements(elements, BLOCK), np.float32)
    _core.hadamard_encode(code, gradient.ctypes.data, elements, BLOCK, seed, wire.ctypes.data)
    wire[np.repeat(lost, PACKET)] = 0
    holes = [(int(packet) * PACKET, PACKET) for packet in np.flatnonzero(lost)]
    result = np.empty_like(gradient)
    _core.hadamard_decode(code, wire.ctypes.data, elements, BLOCK, seed, holes, CAP, result.ctypes.data)
    return result


ESTIMATES: Mapping[str, Estimate] = {"raw": raw, "hadamard": hadamard}


def heavy_tail(share: float, packets: int, times: float, rng: np.random.Generator) -> Floats:
    """A gradient whose last ``share`` of entries are so many times larger; its mean square is 1."""
    gradient = rng.standard_normal(packets * PACKET)
    gradient[len(gradient) - round(share * len(gradient)) :] *= times
    scaled: Floats = (gradient / np.sqrt(np.mean(gradient**2))).astype(np.float32)
    return scaled


@dataclass(frozen=True)
class ErrorParts:
    """Of an estimate, over many losses."""

    mse: float
    bias: float
    """The part that stays when estimates are averaged: the squared error of their mean."""


def error_parts(errors: Sequence[npt.NDArray[np.float64]]) -> ErrorParts:
    """From single errors. The mean of a few still has some of their noise: it is taken out of the bias."""
    stacked = np.stack(errors)
    mse, of_mean = float(np.mean(stacked**2)), float(np.mean(stacked.mean(axis=0) ** 2))
    noise = (mse - of_mean) / (len(stacked) - 1)
    return ErrorParts(mse, max(0.0, of_mean - noise))
