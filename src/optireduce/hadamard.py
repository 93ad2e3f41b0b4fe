"""Gradients that travel as coefficients of a randomized Hadamard transform: whatever is lost, every gradient
entry loses a little, and none is lost as a whole. For ``delivery="best-effort"`` only.

Loss becomes noise of the same size on all entries of a block, which is what SGD likes and
Adam does not: Adam divides by the size of each entry's past gradients, so that noise from large entries
swamps small ones.
"""

from __future__ import annotations

import torch

from . import _core
from .config import Config
from .dtypes import DTYPES, DType
from .wire import IdleBuffers, Lost

BLOCK = 1024
_CAP = 2.0  # of the rescaling: a block of which little came must not shout


class Encoded:
    """A bucket on its way as coefficients, in ``wire``."""

    def __init__(self, pointer: int, elements: int, dtype: DType, seed: int, idle: IdleBuffers) -> None:
        self._pointer, self._elements, self._dtype, self._seed = pointer, elements, dtype, seed
        self._memory, self._idle = idle.take(4 * _core.hadamard_encoded_elements(elements, BLOCK)), idle
        self.wire = torch.from_numpy(self._memory).view(torch.float32)
        _core.hadamard_encode(dtype.code, pointer, elements, BLOCK, seed, self.wire.data_ptr())

    def decode(self, lost: Lost) -> None:
        """Write the result back to where the bucket came from, once; ``lost`` are coefficients."""
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
        self._idle.give(self._memory)


class Encoder:
    """Encodes the buckets of a session, each with a seed of its own that all ranks know; or none of them."""

    def __init__(self, config: Config, optimizer: torch.optim.Optimizer | None, seed: int) -> None:
        self.is_on = is_on(config, optimizer)
        self._seed = seed
        self._idle = IdleBuffers()

    def encoded(self, bucket: torch.Tensor) -> Encoded | None:
        """A bucket in CPU memory; None: it travels as it is."""
        if not self.is_on or bucket.dtype == torch.float64:
            return None
        self._seed = (self._seed + 1) % 2**64
        dtype = DTYPES[str(bucket.dtype).removeprefix("torch.")]
        return Encoded(bucket.data_ptr(), bucket.numel(), dtype, self._seed, self._idle)


def is_on(config: Config, optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether gradients are encoded: only with best effort, because nothing else loses anything. The same on
    all ranks."""
    if config.delivery != "best-effort" or config.hadamard == "off":
        return False
    return config.hadamard == "on" or not _is_adaptive(optimizer)


def _is_adaptive(optimizer: torch.optim.Optimizer | None) -> bool:
    if optimizer is None:
        return False
    adaptive = (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Adafactor)
    return isinstance(optimizer, adaptive) or "betas" in optimizer.defaults
