"""Sets of parameters whose gradients a Budget averages, and the streams under which late samples of them are
kept. A group numbers its sets in the order in which they are first averaged, which is the same on all ranks.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .gradient_buckets import GradientBuckets


class AveragedSet:
    """Parameters, known by their order and sizes."""

    def __init__(self, number: int, parameters: Sequence[torch.Tensor], notes: int) -> None:
        self._number = number
        self._notes = notes
        self._likes = [(parameter.dtype, parameter.shape) for parameter in parameters]
        self._parameters = [weakref.ref(parameter) for parameter in parameters]

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """These are averaged now: the same, or ones that replace them."""
        for index, (known, parameter) in enumerate(zip(self._parameters, parameters, strict=True)):
            if known() is not parameter and known() is not None:
                raise ValueError(
                    f"parameter {index} is another one than in an earlier average() of parameters of the "
                    f"same sizes: late samples would go to the wrong ones. Use one Budget for each model"
                )
        self._parameters = [weakref.ref(parameter) for parameter in parameters]

    def streams(self) -> Iterator[str]:
        """One for each buffer of the set."""
        return (f"budget {self._number}/{index}" for index in itertools.count())

    def buckets(self) -> GradientBuckets:
        """Buffers of the set, also where its parameters are gone."""
        import torch

        from .gradient_buckets import GradientBuckets

        likes = [torch.zeros(shape, dtype=dtype) for dtype, shape in self._likes]
        return GradientBuckets(likes, self._notes)

    def clear(self) -> None:
        """The gradients become zero."""
        import torch

        for parameter in self._alive():
            if parameter is not None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)

    def add(self, buckets: GradientBuckets) -> bool:
        """Add the results to the gradients; whether any of them is not zero."""
        buckets.copy_back()
        found = False
        for parameter, like in zip(self._alive(), buckets.parameters, strict=True):
            if like.grad is None:
                continue
            found = found or bool(like.grad.any())
            if parameter is not None and parameter.grad is not None:
                parameter.grad.detach().add_(like.grad)
        return found

    def _alive(self) -> list[torch.Tensor | None]:
        return [reference() for reference in self._parameters]


class _Sets:
    """Those of one group."""

    def __init__(self) -> None:
        self.known: list[AveragedSet] = []

    def add(self, parameters: Sequence[torch.Tensor], notes: int) -> AveragedSet:
        """A set that is averaged for the first time."""
        self.known.append(AveragedSet(len(self.known), parameters, notes))
        return self.known[-1]


_sets: weakref.WeakKeyDictionary[Any, _Sets] = weakref.WeakKeyDictionary()


def sets_of(target: Any) -> _Sets:
    """Those of a communicator, session or process group."""
    return _sets.setdefault(target, _Sets())
