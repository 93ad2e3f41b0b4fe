"""The training state of a rank as bytes.

Two images: what replicas share (parameters, optimizer, kept objects), equal to the bit on all members, and
the model's buffers. DDP does not synchronize buffers in the sessions that can return a rank, so every rank
may have its own running statistics; the returning rank takes those of one donor.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MismatchError
from .optimizer_state import OptimizerState
from .tree import Json, Reader, Writer, text_of


class Image:
    """A manifest, and the bytes of the tensors that it names."""

    def __init__(self, manifest: bytes, tensors: Sequence[torch.Tensor]) -> None:
        self.manifest = manifest
        self.tensors = [tensor for tensor in tensors if tensor.numel()]

    @classmethod
    def of(cls, value: Any, where: str) -> Image:
        """Of a value; its tensors are not copied, so it is of use only until they change."""
        writer = Writer()
        manifest = text_of(writer.write(value, where)).encode()
        return cls(manifest, writer.tensors)

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() for tensor in self.tensors)

    def digest(self) -> str:
        """Of everything. One pass over memory, in which other threads run."""
        digest = hashlib.sha256(len(self.manifest).to_bytes(8, "little") + self.manifest)
        for tensor in self.tensors:
            digest.update(memory_of(tensor))
        return digest.hexdigest()

    def copy(self, begin: int, end: int) -> torch.Tensor:
        """A range of the tensors' bytes."""
        parts = []
        position = 0
        for tensor in self.tensors:
            first, last = max(begin - position, 0), min(end - position, tensor.numel())
            if first < last:
                parts.append(tensor[first:last])
            position += tensor.numel()
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def value(self) -> Any:
        """What the image is of."""
        reader = Reader(self.tensors[0] if len(self.tensors) == 1 else self.copy(0, self.size))
        tree: Json = json.loads(self.manifest)
        found = reader.read(tree)
        reader.end()
        return found


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Of a tensor of bytes."""
    return memoryview(tensor.numpy())  # type: ignore[arg-type] # numpy's stubs know no Buffer


def part_of(size: int, index: int, parts: int) -> tuple[int, int]:
    """Begin and end of one of so many equal parts."""
    return size * index // parts, size * (index + 1) // parts


@dataclass(frozen=True)
class TrainingState:
    """What has to be equal for two ranks to train alike. Not for keeping: it holds the model."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    kept: Sequence[Any]
    """Objects with state_dict and load_state_dict, in the same order on all ranks."""

    def shared(self) -> Image:
        """What is equal on all members."""
        value = {
            "parameters": [[name, tensor.detach()] for name, tensor in self.model.named_parameters()],
            "optimizer": OptimizerState(self.model, self.optimizer).packed(),
            "kept": [[type(each).__name__, each.state_dict()] for each in self.kept],
        }
        return Image.of(value, "the training state")

    def buffers(self) -> Image:
        """What may differ between ranks."""
        return Image.of([[name, tensor] for name, tensor in self._buffers()], "the model's buffers")

    def apply(self, shared: Image, buffers: Image) -> None:
        """Take over a state, or leave everything as it is and raise MismatchError."""
        try:
            found = shared.value()
            tensors = [
                *_pairs("parameter", list(self.model.named_parameters()), found["parameters"]),
                *_pairs("buffer", self._buffers(), buffers.value()),
            ]
            trained = OptimizerState(self.model, self.optimizer)
            trained.check(found["optimizer"])
            self._check_kept(found["kept"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MismatchError(f"the snapshot is not readable here: {error!r}") from error
        before = [copy.deepcopy(each.state_dict()) for each in self.kept]
        was = trained.packed()
        try:
            for each, (_, state) in zip(self.kept, found["kept"], strict=True):
                each.load_state_dict(state)
            trained.load(found["optimizer"])
        except Exception as error:  # whatever an object raises: nothing must stay half applied
            for each, state in zip(self.kept, before, strict=True):
                each.load_state_dict(state)
            trained.load(was)
            raise MismatchError(f"the snapshot could not be applied: {error!r}") from error
        with torch.no_grad():
            for ours, theirs in tensors:
                ours.copy_(theirs)

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        saved = self.model.state_dict()  # without caches, which a module can make again
        return [(name, buffer) for name, buffer in self.model.named_buffers() if name in saved]

    def _check_kept(self, found: list[Any]) -> None:
        theirs = [name for name, _ in found]
        ours = [type(each).__name__ for each in self.kept]
        if ours != theirs:
            raise MismatchError(
                f"session.keep() has {_listing(ours)} here and {_listing(theirs)} on the other ranks: it "
                f"must be given the same objects in the same order on every rank"
            )


def _pairs(
    what: str, ours: Sequence[tuple[str, torch.Tensor]], theirs: Sequence[Any]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(ours) != len(theirs):
        raise MismatchError(f"the model has {len(ours)} {what}s here and {len(theirs)} on the other ranks")
    for (name, our), (other, their) in zip(ours, theirs, strict=True):
        if (name, our.shape, our.dtype) != (other, their.shape, their.dtype):
            raise MismatchError(
                f"{what} {name!r} is {_shown(our)} here; on the other ranks {other!r} is {_shown(their)}"
            )
    return [(our, their) for (_, our), (_, their) in zip(ours, theirs, strict=True)]


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _listing(names: list[str]) -> str:
    return ", ".join(names) if names else "nothing"
