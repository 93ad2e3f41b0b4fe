"""Gradients as a few long CPU buffers to all-reduce, and back.

All buffers of one dtype are slices of one flat tensor, cut evenly: a short rest would cost an operation of
its own and carry next to nothing. The first flat tensor begins with notes: numbers that ranks
exchange along with the gradients, and one flag for each parameter that says whether a rank had a gradient.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence

import torch

BUCKET_BYTES = 25 * 2**20

# Sums of half-precision gradients would overflow or round away small contributions.
_EXCHANGED_AS = dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float32)
_EXCHANGED_AS[torch.float64] = torch.float64


class GradientBuckets:
    """The buffers for one set of parameters; used again every step."""

    def __init__(self, parameters: Sequence[torch.Tensor], notes: int) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("parameters is empty: there is no gradient to average")
        self._notes = notes
        self.layout = layout_of(self.parameters)
        header = notes + len(self.parameters)
        self._flats, self._views = _lay_out(self.parameters, header)
        self._header = next(iter(self._flats.values()))[:header]

    def serves(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether these are the parameters it was made for."""
        return len(parameters) == len(self.parameters) and all(
            ours is theirs for ours, theirs in zip(self.parameters, parameters, strict=True)
        )

    def fill(self, notes: Sequence[float]) -> None:
        """Take this rank's gradients, zeros where there is none."""
        flags = [float(parameter.grad is not None) for parameter in self.parameters]
        self._header.copy_(torch.tensor([*notes, *flags], dtype=torch.float64))
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient.layout is not torch.strided:
                raise TypeError(f"parameter {index} has a sparse gradient: only dense ones can be averaged")
            else:
                view.copy_(gradient)

    def buffers(self) -> Iterator[torch.Tensor]:
        """What to all-reduce, in the same order on every rank."""
        for flat in self._flats.values():
            pieces = math.ceil(flat.nbytes / BUCKET_BYTES)
            yield from torch.split(flat, math.ceil(flat.numel() / pieces))

    def copy_back(self) -> list[float]:
        """Give every parameter the result as its gradient, None where no rank had one; the notes.

        The flags make all ranks agree, so that optimizers, which skip parameters without a gradient, do the
        same everywhere.
        """
        header = self._header.tolist()
        flags = header[self._notes :]
        for parameter, view, flag in zip(self.parameters, self._views, flags, strict=True):
            # The flag of a rank may be late although its gradient is not.
            if not flag > 0 and not bool(view.any()):
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(view)
            else:
                parameter.grad.detach().copy_(view)
        return header[: self._notes]


def layout_of(parameters: Sequence[torch.Tensor]) -> str:
    """Equal for parameters of the same types and sizes in the same order."""
    text = ";".join(f"{parameter.dtype} {tuple(parameter.shape)}" for parameter in parameters)
    return f"{zlib.crc32(text.encode()):08x}"


def _lay_out(
    parameters: Sequence[torch.Tensor], header: int
) -> tuple[dict[torch.dtype, torch.Tensor], list[torch.Tensor]]:
    """The flat tensors by dtype, and each parameter's part of them in its own shape."""
    ends: dict[torch.dtype, int] = {}
    places: list[tuple[torch.dtype, int]] = []
    for index, parameter in enumerate(parameters):
        dtype = _EXCHANGED_AS.get(parameter.dtype)
        if dtype is None:
            raise TypeError(f"parameter {index} has dtype {parameter.dtype}: only floats can be averaged")
        begin = ends.get(dtype, 0 if ends else header)
        places.append((dtype, begin))
        ends[dtype] = begin + parameter.numel()
    flats = {dtype: torch.zeros(end, dtype=dtype) for dtype, end in ends.items()}
    views = [
        flats[dtype][begin : begin + parameter.numel()].view(parameter.shape)
        for parameter, (dtype, begin) in zip(parameters, places, strict=True)
    ]
    return flats, views
