"""All-reduces that a program calls itself: what may be given to them, and the streams that they name.

A stream is the sequence of calls on the same values. It is named by the caller, because nothing else is safe:
where a buffer lies says nothing about what is in it, and may differ between ranks of a correct program.
"""

from __future__ import annotations

import contextlib
import contextvars
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from .dtypes import OPS, WEIGHTED_MEAN, DType

Stream = int | str
"""How callers name a stream."""

MOST_WEIGHT = 65_535  # 16 bits
_MOST_STREAM = 2**31 - 1  # names are hashed to numbers above


class CallOptions(NamedTuple):
    """What a call says besides its buffer and reduction; see Communicator.all_reduce_async."""

    weight: int | None = None
    stream: Stream | None = None
    exact: bool = False
    scale: float = 1.0

    def check(self, code: int) -> None:
        """TypeError or ValueError names the argument, its value and what would be right."""
        if self.weight is not None:
            _require_integer("weight", self.weight)
            if not 0 <= self.weight <= MOST_WEIGHT:
                raise ValueError(f"weight = {self.weight} is not usable: it must be from 0 to {MOST_WEIGHT}")
            if code != OPS["mean"]:
                raise ValueError(f'weight = {self.weight} needs op = "mean": a sum has no weights')
        if self.stream is not None:
            number_of(self.stream)
        if not isinstance(self.scale, int | float) or not 0 < self.scale < float("inf"):
            raise ValueError(f"scale = {self.scale!r} is not usable: it must be a number above 0")


def number_of(stream: Stream) -> int:
    """By which the core knows a stream; the same on all ranks."""
    if isinstance(stream, str):
        if not stream:
            raise ValueError("stream = '' is not usable: it must be a number from 1 or a name")
        return zlib.crc32(stream.encode()) | (_MOST_STREAM + 1)
    _require_integer("stream", stream)
    if not 1 <= stream <= _MOST_STREAM:
        raise ValueError(f"stream = {stream} is not usable: it must be from 1 to {_MOST_STREAM}, or a name")
    return stream


def _require_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r} is a {type(value).__name__}: it must be an integer")


class _Known(NamedTuple):
    name: Stream
    elements: int
    dtype: DType
    op: int


class CallStreams:
    """The streams that the calls of one group have named, and the steps that they make up: a step ends when a
    stream comes again."""

    def __init__(self) -> None:
        self.steps = 0
        self._known: dict[int, _Known] = {}
        self._in_step: set[int] = set()

    def enter(self, stream: Stream, elements: int, dtype: DType, op: int) -> int:
        """The stream's number. ValueError: its calls differ, so they cannot be on the same values."""
        number, call = number_of(stream), _Known(stream, elements, dtype, op)
        known = self._known.setdefault(number, call)
        if known != call:
            raise ValueError(
                f"stream = {stream!r} had {_described(known)} in an earlier call and has {_described(call)} "
                f"now: all calls of a stream must be on the same values; use another stream"
            )
        if number in self._in_step:
            self.steps += 1
            self._in_step.clear()
        self._in_step.add(number)
        return number


def _described(call: _Known) -> str:
    ops = {code: name for name, code in OPS.items()} | {WEIGHTED_MEAN: "weighted mean"}
    return f"{call.elements} elements of {call.dtype.itemsize} bytes ({ops[call.op]}, stream {call.name!r})"


class _Scope:
    """The calls inside of one ``with stream(name)``."""

    def __init__(self, name: str, exact: bool) -> None:
        self._name = name
        self.exact = exact
        self._calls: dict[int, int] = {}  # by group

    def next(self, group: int) -> str:
        self._calls[group] = self._calls.get(group, 0) + 1
        return f"{self._name}/{self._calls[group]}"


_scope: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar("optireduce_stream", default=None)


@contextlib.contextmanager
def stream(name: str, *, exact: bool = False) -> Iterator[None]:
    """With ``Config(bounded="all")``: give the SUM and AVG all-reduces that this thread makes inside, on
    groups of the ``optireduce`` backend, a deadline. The n-th call inside is always on the same values::

        with optireduce.stream("gradients"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)

    A contribution that arrives after the deadline is added to the same rank's next n-th call under this name.
    ``exact``: these calls wait for every rank, and include what is left of earlier ones. Without "all" every
    call is exact in any case. A call whose size or type differs from the one before raises ValueError.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name = {name!r} is not usable: it must be a text that names what the calls reduce")
    token = _scope.set(_Scope(name, exact))
    try:
        yield
    finally:
        _scope.reset(token)


def options_in_scope(group: Any) -> CallOptions:
    """Of a call of torch's, which gives nothing but a tensor."""
    scope = _scope.get()
    return CallOptions() if scope is None else CallOptions(stream=scope.next(id(group)), exact=scope.exact)
