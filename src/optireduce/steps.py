"""Which training step a session is in, and what its buckets report."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import TypeVar

from .errors import OptiReduceError
from .report import StepReport, step_report
from .transport import Operation

T = TypeVar("T")


@dataclass
class OpenStep:
    """A step whose buckets are still on their way."""

    number: int
    scale: float = 1.0
    started_at: float = field(default_factory=time.monotonic)
    operations: list[Operation] = field(default_factory=list)
    is_whole: bool = False  # the last bucket has been started
    done: int = 0
    is_discarded: bool = False  # this rank was left behind: its gradients mean nothing
    failure: OptiReduceError | None = None  # what an operation's error comes from

    @property
    def error(self) -> OptiReduceError | None:
        """Why it failed."""
        if self.is_discarded or self.failure is not None:
            return self.failure
        return next((operation.error for operation in self.operations if operation.error), None)


class Steps:
    """Counts steps. Buckets start on the training thread, and end on others."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.open = OpenStep(0)
        self.last: StepReport | None = None
        self.discarded = 0
        self._jumped = 0  # steps that this rank never took part in
        self._to_skip = 0  # batches of these, which nobody has skipped yet

    def begin(self, scale: float) -> None:
        """The next bucket is the first of a step; an earlier step may have been given up."""
        self.open = OpenStep(self.number, scale)

    def started(self, step: OpenStep, operation: Operation, is_last: bool) -> None:
        """A bucket of a step is on its way."""
        with self.lock:
            step.operations.append(operation)
            step.is_whole = is_last
            self.number += is_last

    def ended(self, step: OpenStep) -> bool:
        """A bucket has its result; whether all buckets have."""
        with self.lock:
            step.done += 1
            if not step.is_whole or step.done != len(step.operations):
                return False
            reports = [operation.result() for operation in step.operations]
            self.last = step_report(step.number, reports, time.monotonic() - step.started_at)
            return True

    def discard(self, step: OpenStep) -> None:
        """A bucket has no result, and nobody shall use this step's gradients."""
        with self.lock:
            self.discarded += not step.is_discarded
            step.is_discarded = True

    def jump(self, number: int) -> None:
        """A snapshot moved this rank on. Discarded steps took batches like others."""
        with self.lock:
            self._jumped += max(0, number - self.number)
            self.number = number

    def batches(self, loader: Iterable[T], ends: Callable[[], bool]) -> Iterator[T]:
        """See :meth:`Session.batches`. Batches for a step are counted, because gradients may be accumulated
        over several. What is left of a loader, or all of it, is not loaded to be skipped: a process that was
        restarted may have missed many epochs. ``ends`` is asked between two steps."""
        for_each_step, drawn = 1, 0
        left = len(loader) if isinstance(loader, Sized) else math.inf
        if self._skips(left):
            return
        for batch in loader:
            left -= 1
            if self._to_skip > 0:
                self._to_skip -= 1
                continue
            if drawn == 0 and ends():
                return
            number, jumped = self.number, self._jumped
            yield batch
            drawn += 1
            missed = self._jumped - jumped
            if taken := self.number - number - missed:
                for_each_step, drawn = max(1, drawn // taken), 0
            self._to_skip += missed * for_each_step
            if self._skips(left):
                return

    def _skips(self, left: float) -> bool:
        """Whether all of so many batches belong to missed steps."""
        skips = 0 < left <= self._to_skip
        if skips:
            self._to_skip -= int(left)
        return skips
