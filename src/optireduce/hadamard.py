"""Gradients that travel as coefficients of a randomized Hadamard transform: whatever is lost, every gradient
entry loses a little, and none is lost as a whole.

Off by default. Loss becomes noise of the same size on all entries of a block, which is what SGD likes and
Adam does not: Adam divides by the size of each entry's past gradients, so that noise from large entries
swamps small ones.
"""

from __future__ import annotations

import torch

from . import _core
from .dtypes import DType
from .wire import Lost

BLOCK = 1024
_CAP = 2.0  # of the rescaling: a block of which little came must not shout
_WIRE = torch.float32
_ON_ABOVE, _OFF_BELOW = 0.01, 0.002
_MEMORY = 0.9


class Encoded:
    """A bucket on its way as coefficients, in ``wire``."""

    def __init__(self, pointer: int, elements: int, dtype: DType, seed: int, wire: torch.Tensor) -> None:
        self._pointer, self._elements, self._dtype, self._seed = pointer, elements, dtype, seed
        self.wire = wire
        _core.hadamard_encode(dtype.code, pointer, elements, BLOCK, seed, wire.data_ptr())

    def decode(self, lost: Lost) -> None:
        """Write the result back to where the bucket came from; ``lost`` are coefficients."""
        _core.hadamard_decode(
            self._dtype.code,
            self.wire.data_ptr(),
            self._elements,
            BLOCK,
            self._seed,
            lost,
            _CAP,
            self._pointer,
        )


class WireBuffers:
    """One buffer for each bucket, kept from step to step: making large ones anew costs more than encoding."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def get(self, bucket: int, elements: int) -> torch.Tensor:
        """For so many elements of that bucket."""
        size = _core.hadamard_encoded_elements(elements, BLOCK)
        if bucket not in self._buffers or self._buffers[bucket].numel() != size:
            self._buffers[bucket] = torch.empty(size, dtype=_WIRE)
        return self._buffers[bucket]


class Switch:
    """Whether to encode: the same on all ranks, because it looks only at settings and agreed losses."""

    def __init__(self, mode: str, may_help: bool) -> None:
        self.adapts = mode == "auto" and may_help
        """Then every rank must learn the same: one that missed a verdict would encode when others do not."""
        self.on = mode == "on"
        self._lost = 0.0

    def learn(self, lost: float) -> None:
        """A step's agreed loss."""
        self._lost = _MEMORY * self._lost + (1 - _MEMORY) * lost
        if self.adapts:
            self.on = self._lost > (_OFF_BELOW if self.on else _ON_ABOVE)


def may_help(optimizer: torch.optim.Optimizer | None, late_repair: bool, resync: bool) -> bool:
    """Where losses neither come later nor are made good, and the optimizer does not divide by the size of
    past gradients."""
    return not late_repair and not resync and not _is_adaptive(optimizer)


def _is_adaptive(optimizer: torch.optim.Optimizer | None) -> bool:
    if optimizer is None:
        return False
    adaptive = (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Adafactor)
    return isinstance(optimizer, adaptive) or "betas" in optimizer.defaults
