"""The parameters of a model as one string of bytes, cut in slices. One is looked at before each step."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core

_SLICES = 64
_LEAST_BYTES = 65_536  # of a slice, so that the parameters of a small model are looked at more often


@dataclass(frozen=True)
class Piece:
    """A part of one parameter: elements in the order in which they lie in memory."""

    name: str
    parameter: weakref.ref[torch.Tensor]  # no cycle: the model's reducer holds the session
    dtype: torch.dtype
    elements: int
    """Of the whole parameter."""
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return (self.end - self.begin) * int(self.dtype.itemsize)

    def tensor(self) -> torch.Tensor | None:
        """The parameter; None: it is another one by now."""
        found = self.parameter()
        if (
            found is None
            or found.dtype != self.dtype
            or found.numel() != self.elements
            or not _is_seen(found)
        ):
            return None
        return found.detach()


class ParameterSlices:
    """The slices of one model; the same on all ranks. Parameters that are not in CPU memory are left out,
    because looking at them would wait for the device; and those that DDP was told to ignore."""

    def __init__(self, model: Any) -> None:
        ignored = getattr(model, "parameters_to_ignore", ())
        found = [
            (name, parameter)
            for name, parameter in getattr(model, "module", model).named_parameters()
            if name not in ignored and _is_seen(parameter)
        ]
        total = sum(parameter.nbytes for _, parameter in found)
        self.count: int = max(1, min(_SLICES, total // _LEAST_BYTES))
        self._slices: list[list[Piece]] = [[] for _ in range(self.count)]
        position = 0
        for name, parameter in found:
            for index in range(self.count):
                begin = _element(total * index // self.count - position, parameter)
                end = _element(total * (index + 1) // self.count - position, parameter)
                if begin < end:
                    self._slices[index].append(
                        Piece(
                            name,
                            weakref.ref(parameter),
                            parameter.dtype,
                            parameter.numel(),
                            begin,
                            end,
                        )
                    )
            position += parameter.nbytes

    def index(self, step: int) -> int:
        """The slice that is looked at before this step."""
        return step % self.count

    def pieces(self, index: int) -> list[Piece]:
        """What a slice consists of."""
        return self._slices[index]

    def fingerprint(self, index: int) -> int | None:
        """Of one slice; None: the model has other parameters by now."""
        kept = []  # alive until they are hashed
        where = []
        for piece in self._slices[index]:
            tensor = piece.tensor()
            if tensor is None:
                return None
            flat = _flat(tensor)
            kept.append(flat)
            where.append((flat.data_ptr() + piece.begin * piece.dtype.itemsize, piece.bytes))
        return _core.fingerprint(where)

    def copy(self, index: int) -> torch.Tensor | None:
        """The bytes of one slice; None as above."""
        parts = []
        for piece in self._slices[index]:
            tensor = piece.tensor()
            if tensor is None:
                return None
            parts.append(_flat(tensor).reshape(-1)[piece.begin : piece.end].view(torch.uint8))
        return torch.cat(parts)


def _is_seen(parameter: torch.Tensor) -> bool:
    return parameter.device.type == "cpu" and parameter.layout is torch.strided and parameter.numel() > 0


def _element(at: int, parameter: torch.Tensor) -> int:
    """The element at a byte, or the parameter's first or last."""
    bytes_each: int = parameter.itemsize
    inside: int = max(0, min(at, parameter.nbytes))
    return inside // bytes_each


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """With its values in the order of memory (channels_last), where possible without a copy."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
    return tensor.permute(order).reshape(-1)
