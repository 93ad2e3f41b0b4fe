"""Which bucket is which from step to step, so that residuals stay with their parameters.

A stream is one bucket with one layout. Its number is a hash of the bucket's index and of the position and
size of its parameters: the same on all ranks, and another one after DDP has rebuilt its buckets. Residuals of
streams that are gone move to the buckets that now hold their parameters.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from .dtypes import DTYPES

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from ._core import Engine

_DTYPES = {dtype.code: getattr(torch, name) for name, dtype in DTYPES.items()}


class Place(NamedTuple):
    """Where one parameter lies in a bucket."""

    position: int
    """Of the parameter in ``model.parameters()``."""
    begin: int
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's values in a flat tensor of the bucket's layout."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.begin)


class Layout(NamedTuple):
    """One bucket's parameters, in order."""

    stream: int
    elements: int
    places: tuple[Place, ...]


class Streams:
    """The streams of one model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._known: dict[int, Layout] = {}  # by stream; those that may have a residual
        self._seen: set[int] = set()  # in this step
        self._moving: dict[int, torch.Tensor] = {}  # residuals without a bucket, by parameter
        self._others: frozenset[int] = frozenset()  # streams that the others knew when we took a snapshot

    def begin_step(self) -> None:
        """The next bucket is the first of a step."""
        self._seen.clear()

    def enter(self, bucket: GradBucket, model: torch.nn.Module) -> tuple[Layout, bool]:
        """The bucket's layout, and whether it is new in the group."""
        layout = self._layout_of(bucket, model)
        is_new = layout.stream not in self._known
        if is_new:
            for stream in self._known.keys() - self._seen:
                old = self._known.pop(stream)
                if (residual := self._taken(old)) is not None:
                    self._moving |= {place.position: place.of(residual) for place in old.places}
            self._known[layout.stream] = layout
        self._seen.add(layout.stream)
        return layout, is_new and layout.stream not in self._others

    def state_dict(self) -> dict[str, list[int]]:
        """What a process that joins must know: which streams are not new, although it has not used them."""
        return {"streams": sorted(self._known)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take over another rank's, together with its parameters: the residuals of before mean nothing."""
        self._others = frozenset(state["streams"])
        self._moving.clear()

    def known(self, stream: int) -> Layout | None:
        """The layout of a stream of the newest step."""
        return self._known.get(stream)

    def add_moved(self, layout: Layout, buffer: torch.Tensor, scale: float) -> None:
        """Add residuals of earlier streams to the gradients of a new one, which are scaled."""
        for place in layout.places:
            if (moved := self._moving.pop(place.position, None)) is not None:
                place.of(buffer).add_(moved.to(buffer.dtype), alpha=scale)

    def take_all(self) -> Iterator[tuple[Layout, torch.Tensor]]:
        """What is left of every stream, in the same order on all ranks; zeros where nothing is."""
        for layout in self._known.values():
            residual = self._taken(layout)
            yield layout, torch.zeros(layout.elements) if residual is None else residual

    def _taken(self, layout: Layout) -> torch.Tensor | None:
        """In float32, without a GradScaler's scale."""
        code, scale, values = self._engine.take_residual(layout.stream)
        if not values:
            return None
        return torch.frombuffer(bytearray(values), dtype=_DTYPES[code]).float().div_(scale)

    def _layout_of(self, bucket: GradBucket, model: torch.nn.Module) -> Layout:
        parameters = bucket.parameters()
        key = (bucket.index(), *map(id, parameters))
        if key not in self._layouts:
            positions = {id(parameter): n for n, parameter in enumerate(model.parameters())}
            buffer = bucket.buffer()
            places = tuple(
                Place(
                    positions[id(parameter)],
                    int(gradient.storage_offset() - buffer.storage_offset()),
                    gradient.shape,
                    gradient.stride(),
                )
                for parameter, gradient in zip(parameters, bucket.gradients(), strict=True)
            )
            self._layouts[key] = Layout(_stream_number(bucket.index(), places), buffer.numel(), places)
        return self._layouts[key]


def _stream_number(index: int, places: tuple[Place, ...]) -> int:
    """32 bits, never 0, which means no stream."""
    numbers = [index, *(number for place in places for number in (place.position, place.shape.numel()))]
    return zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)) or 1
