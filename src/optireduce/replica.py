"""The tensors that should be equal on all ranks, as one sequence of 8-byte words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

WORD_BYTES = 8  # the largest element: none is ever cut in two


class Difference(NamedTuple):
    """Sums of squares over floating-point elements."""

    difference: float
    size: float


class _Place(NamedTuple):
    flat: torch.Tensor  # all elements of a tensor, in the order of its memory
    first_word: int
    end_word: int
    is_parameter: bool


class _Piece(NamedTuple):
    mine: torch.Tensor
    theirs: torch.Tensor  # its place among the words
    is_parameter: bool


class Replica:
    """Reads and writes pieces of many tensors. All ranks must give tensors of the same shapes and types, in
    the same order."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._places: list[_Place] = []
        self.words = 0
        for tensor in tensors:
            flat = _flat(tensor)
            end = self.words + -(-flat.numel() * flat.element_size() // WORD_BYTES)
            self._places.append(_Place(flat, self.words, end, isinstance(tensor, torch.nn.Parameter)))
            self.words = end

    def read(self, window: slice, out: torch.Tensor) -> list[int]:
        """Copy the words of ``window`` to the front of ``out``, a CPU tensor of 8-byte elements. Returns the
        versions of the tensors that were read, for write()."""
        versions = []
        for mine, theirs, _ in self._pieces(window, out):
            theirs.copy_(mine)
            versions.append(mine._version)
        return versions

    def write(self, window: slice, words: torch.Tensor, versions: list[int]) -> Difference:
        """Replace the words of ``window`` by the front of ``words``; how much that changed. A parameter that
        was changed since its version was read keeps its value: what came would undo that. Buffers change in
        every forward pass, and may miss one."""
        difference = size = 0.0
        for piece, version in zip(self._pieces(window, words), versions, strict=True):
            mine = piece.mine
            if piece.is_parameter and mine._version != version:
                continue
            theirs = piece.theirs.to(mine.device)
            if mine.is_floating_point():
                before = mine.double()
                difference += float((theirs.double() - before).square().sum())
                size += float(before.square().sum())
            mine.copy_(theirs)
        return Difference(difference, size)

    def _pieces(self, window: slice, words: torch.Tensor) -> Iterator[_Piece]:
        """The parts of tensors in the window, each with its place in ``words``."""
        octets = words.view(torch.uint8)
        for flat, first, end, is_parameter in self._places:
            low, high = max(first, window.start), min(end, window.stop)
            if low >= high:
                continue
            per_word = WORD_BYTES // flat.element_size()
            piece = flat[(low - first) * per_word : (high - first) * per_word]
            begin = (low - window.start) * WORD_BYTES
            room = octets[begin : begin + piece.numel() * piece.element_size()]
            yield _Piece(piece, room.view(piece.dtype), is_parameter)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view of all elements in the order of memory, whatever the order of dimensions (channels last)."""
    tensor = tensor.detach()
    reach = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() and reach != tensor.numel():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps in memory: "
            f"parameters must be dense to be kept equal on all ranks"
        )
    return tensor.as_strided((tensor.numel(),), (1,))
