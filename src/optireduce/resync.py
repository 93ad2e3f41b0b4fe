"""The slow resync: in every step a small part of the parameters is sent by the rank that is its source in
this step, and adopted by all others, so that replicas cannot drift apart for ever, whatever was lost and
whatever the optimizer does with gradients. Or all of them at once, when somebody wants them equal now.

A part is read when a forward pass begins and adopted before the optimizer's next step. In between nobody
changes parameters, so what is adopted is exact; and it travels before the first gradient does, when the links
have nothing else to do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from .dtypes import DTYPES, GATHER
from .replica import WORD_BYTES, Difference, Replica
from .resync_windows import ResyncWindows
from .transport import Operation, Transport

# When all parts are wanted: so many at once, because more would be a second copy of a large model; and with
# the deadline of something so much larger, which bursts do not reach and a dead rank does not extend.
_MOST_BYTES_AT_ONCE = 64 << 20
_PATIENCE, _LEAST_PATIENCE_BYTES = 10, 8 << 20


class _Part(NamedTuple):
    """Of the parameters, on its way."""

    operation: Operation
    window: slice
    buffer: torch.Tensor
    versions: list[int]  # of what was read


class _Found(NamedTuple):
    """What replacing so many words has changed."""

    words: int
    difference: Difference


class Resync:
    """One rank's side. ``tensors`` is asked for the tensors that are kept equal, in every step: an optimizer
    makes its state in its first one, and some programs give parameters other memory."""

    def __init__(
        self, transport: Transport, steps: int, tensors: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        self._transport = transport
        self._steps = steps
        self._tensors = tensors
        self._memory: list[int] = [-1]  # where the tensors were when we last looked
        self._step = 0
        self._under_way: _Part | None = None
        self._is_early = False  # it has been sent before the backward pass that it belongs to
        self._found: deque[_Found] = deque()  # in the last full round
        self._words_found = 0
        self._replica_words = 1

    @property
    def drift(self) -> float | None:
        """How far this replica was from the others when parts of it were last replaced: the norm of the
        differences over the norm of the parameters. None before the first full round."""
        if self._words_found < self._replica_words:
            return None
        difference = sum(found.difference.difference for found in self._found)
        size = sum(found.difference.size for found in self._found)
        sent_by_us = 1 / self._transport.size  # these parts cannot differ
        return math.sqrt(difference / (size * (1 - sent_by_us))) if size > 0 else 0.0

    def begin_early(self) -> None:
        """For the next backward pass, as soon as its parameters are final: when its forward pass begins. Of
        several forward passes the first."""
        if not self._is_early:
            self._begin()
            self._is_early = True

    def begin(self) -> None:
        """Send and request this step's part, if that has not been done early. To be called on every rank, in
        the same order among all operations."""
        if not self._is_early:
            self._begin()
        self._is_early = False

    def adopt(self) -> None:
        """Wait for the part that is under way and put it in place. Only while nobody computes with the
        parameters."""
        if self._under_way is not None:
            part, self._under_way = self._under_way, None
            self._put(part)

    def everything(self) -> bool:
        """Send and adopt all parts now, with patience; whether all of them came. The same conditions as for
        begin() and adopt()."""
        self.adopt()
        self._look_at_tensors()
        rounds = -(-self._replica_words * WORD_BYTES // _MOST_BYTES_AT_ONCE)
        windows = ResyncWindows(self._replica_words, self._transport.size, rounds)
        patience = _LEAST_PATIENCE_BYTES + _PATIENCE * windows.size * WORD_BYTES
        came = [self._put(self._send(windows, index, patience)) for index in range(windows.count)]
        return all(came)

    def _begin(self) -> None:
        """Nobody waits for a part before the gradients have come: it may take as long as they do."""
        self._look_at_tensors()
        self._under_way = self._send(self._windows, self._step, self._replica_words * WORD_BYTES)
        self._step += 1

    def _send(self, windows: ResyncWindows, index: int, patience_bytes: int) -> _Part:
        window = windows.window(index)
        buffer = torch.zeros(windows.size, dtype=torch.float64)
        versions = self._replica.read(window, buffer)
        operation = self._transport.start(
            buffer.data_ptr(),
            buffer.numel(),
            DTYPES["float64"],
            GATHER,
            gradient=True,
            repairs=True,
            patience_bytes=patience_bytes,
            keep_alive=buffer,
        )
        return _Part(operation, window, buffer, versions)

    def _put(self, part: _Part) -> bool:
        """Whether all of it came; what did not keeps its value."""
        part.operation.wait()
        report = part.operation.result()
        with torch.no_grad():
            difference = self._replica.write(part.window, part.buffer, part.versions)
        self._note(_Found(part.window.stop - part.window.start, difference))
        return report.reduced_lost_bytes == 0 and not report.absent

    def _note(self, found: _Found) -> None:
        """Forgets what is older than a full round."""
        self._found.append(found)
        self._words_found += found.words
        while self._words_found - self._found[0].words >= self._replica_words:
            self._words_found -= self._found.popleft().words

    def _look_at_tensors(self) -> None:
        tensors = list(self._tensors())
        memory = [tensor.data_ptr() for tensor in tensors]
        if memory == self._memory:
            return
        self._memory = memory
        self._replica = Replica(tensors)
        self._replica_words = max(self._replica.words, 1)
        self._windows = ResyncWindows(self._replica_words, self._transport.size, self._steps)
        self._found.clear()
        self._words_found = 0
