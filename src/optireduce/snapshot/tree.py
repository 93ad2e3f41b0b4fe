"""Values of a ``state_dict`` as JSON text and bytes of tensors, and back.

Equal values give equal text and bytes on every rank, which pickles do not: they depend on the identity of
objects. Reading never runs code. Tensors are named in the text and lie one after the other in the body, in
the order of the text.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any, TypeAlias

import torch

Json: TypeAlias = Any

_PLAIN = (bool, int, float, str)


class Writer:
    """Takes values apart; ``tensors`` are the bytes of those seen so far."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def write(self, value: Any, where: str) -> Json:
        """The value as JSON. TypeError says ``where`` a value of another kind lies."""
        if value is None:
            return None
        for kind in _PLAIN:
            if isinstance(value, kind):
                return kind(value)  # also of subclasses, such as numpy's float64
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, where)}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, list):
            return self._list(value, where)
        if isinstance(value, tuple):
            return {"tuple": self._list(value, where)}
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(self._list(value, where), key=text_of)}
        if isinstance(value, dict):
            return self._dict(value, where)
        raise TypeError(
            f"{where} is a {type(value).__name__}: only numbers, strings, bytes, tensors, lists, tuples, "
            f"sets and dictionaries of these can be sent to another rank"
        )

    def _list(self, values: Any, where: str) -> list[Json]:
        return [self.write(value, f"{where}[{index}]") for index, value in enumerate(values)]

    def _dict(self, values: dict[Any, Any], where: str) -> Json:
        """The order of a plain dictionary depends on its history, so keys are sorted."""
        keys = list(values)
        if not isinstance(values, OrderedDict):
            keys.sort(key=lambda key: (type(key).__name__, repr(key)))
        items = [
            [self.write(key, f"a key of {where}"), self.write(values[key], f"{where}[{key!r}]")]
            for key in keys
        ]
        kinds = {OrderedDict: "ordered", Counter: "counter"}
        return {next((name for kind, name in kinds.items() if isinstance(values, kind)), "dict"): items}

    def _tensor(self, tensor: torch.Tensor, where: str) -> Json:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"{where} is a tensor that is not dense: it cannot be sent to another rank")
        # Without a copy where the values lie in memory as they are numbered.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        self.tensors.append(flat.view(torch.uint8))
        return [_name_of(tensor.dtype), list(tensor.shape)]


class Reader:
    """Puts values together again; every tensor is new memory."""

    def __init__(self, body: torch.Tensor) -> None:
        self._body = body  # of bytes
        self._begin = 0

    def read(self, tree: Json) -> Any:
        """What was written. ValueError: the text or the body is not what a Writer makes."""
        if isinstance(tree, list):
            return [self.read(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, content),) = tree.items()
        if kind == "tensor":
            return self._tensor(*content)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self.read(content))
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]((self.read(key), self.read(value)) for key, value in content)
        raise ValueError(f"{kind!r} is not a kind of value")

    def end(self) -> None:
        """Everything has been read."""
        if self._begin != self._body.numel():
            raise ValueError(f"{self._begin} bytes are named, {self._body.numel()} are there")

    def _tensor(self, dtype: str, shape: list[int]) -> torch.Tensor:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or any(size < 0 for size in shape):
            raise ValueError(f"there is no tensor of {dtype!r} {shape!r}")
        end = self._begin + math.prod(shape) * kind.itemsize
        if end > self._body.numel():
            raise ValueError(f"a tensor of {dtype} {shape} ends after the {self._body.numel()} bytes")
        found = torch.empty(math.prod(shape), dtype=kind)
        found.view(torch.uint8).copy_(self._body[self._begin : end])
        self._begin = end
        return found.reshape(shape)


def text_of(tree: Json) -> str:
    """The same text for the same tree."""
    return json.dumps(tree, separators=(",", ":"))


def _counter(items: Any) -> Counter[Any]:
    return Counter(dict(items))


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set}
_MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": _counter}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
