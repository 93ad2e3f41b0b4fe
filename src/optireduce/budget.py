"""Bounded computation: a rank that computes slowly contributes fewer samples, and the others need not wait.

In a loop with gradient accumulation every rank runs micro-batches until a budget of time is spent, and the
gradients are averaged over all samples that were computed anywhere: fewer samples on a slow rank make the
step's batch smaller, not its mean wrong. Where the exchange has a deadline, samples that miss it are in the
next mean instead, so that each sample is in exactly one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .averaged_sets import AveragedSet, sets_of
from .calls import MOST_WEIGHT
from .config import require
from .errors import RankLostError
from .report import Report, StepReport, step_report

if TYPE_CHECKING:
    import torch

    from .communicator import Handle
    from .gradient_buckets import GradientBuckets

T = TypeVar("T")


class ComputePolicy:
    """How long a rank may compute in one step: the usual time in the group, and a margin.

    The usual time is the median over the last ``window_steps`` steps: it follows a lasting change after half
    a window and ignores a single slow step. A larger ``margin``, as a share of the usual time, drops fewer
    micro-batches and waits longer for slow ranks. The first ``free_steps`` steps have no limit.
    """

    def __init__(
        self,
        *,
        margin: float = 0.25,
        least_margin_seconds: float = 0.005,
        free_steps: int = 5,
        window_steps: int = 20,
    ) -> None:
        require(margin > 0, "margin", margin, "above 0")
        require(least_margin_seconds >= 0, "least_margin_seconds", least_margin_seconds, "0 or more")
        require(free_steps >= 1, "free_steps", free_steps, "1 or more")
        require(window_steps >= free_steps, "window_steps", window_steps, "at least free_steps")
        self._margin = margin
        self._least_margin_seconds = least_margin_seconds
        self._free_steps = free_steps
        self._recent: deque[float] = deque(maxlen=window_steps)

    @property
    def limit_seconds(self) -> float:
        """The budget of the next step; infinite before enough steps are known."""
        if len(self._recent) < self._free_steps:
            return math.inf
        usual = statistics.median(self._recent)
        return usual + max(self._margin * usual, self._least_margin_seconds)

    def observe(self, full_seconds: Sequence[float]) -> None:
        """Take note of what a full set of micro-batches took, or would have taken, on each rank that told.

        The (lower) median rank sets the pace: up to half of the ranks may be slow without slowing it.
        """
        known = [seconds for seconds in full_seconds if seconds > 0 and math.isfinite(seconds)]
        if known:
            self._recent.append(statistics.median_low(known))


@dataclass
class ComputeStep:
    """The computation of one step on this rank."""

    planned: int
    """Micro-batches of a full set."""
    limit_seconds: float
    """The budget; infinite in the first steps."""
    micro_batches: int = 0
    """Those that were run."""
    samples: int = 0
    """The weight of this rank's gradients in the mean."""
    seconds: float = 0.0
    """From the start of the first micro-batch to the end of the last, loading of data included."""

    @property
    def stopped_early(self) -> bool:
        """Whether the budget left some micro-batches out."""
        return self.micro_batches < self.planned

    @property
    def full_seconds(self) -> float:
        """What the full set takes at this step's pace; 0: not known."""
        return self.seconds / self.micro_batches * self.planned if self.micro_batches else 0.0

    def has_time(self) -> bool:
        """Whether one more micro-batch fits, on average; the first one always does."""
        if not self.micro_batches:
            return True
        return self.seconds + self.seconds / self.micro_batches <= self.limit_seconds


class Budget:
    """Ends gradient accumulation when this step's budget of time is spent, and averages over all samples::

        budget = optireduce.Budget(session)
        for step in range(steps):
            for batch in budget.micro_batches(batches_of_this_step):
                with model.no_sync():
                    loss_fn(model(batch)).backward()
            report = budget.average(model.parameters())
            optimizer.step()
            optimizer.zero_grad()

    The budget adapts: see ComputePolicy. Ranks learn each other's pace from the averaging itself. A
    micro-batch that has begun is always finished.

    The average has a deadline with what :func:`attach` returned (``Config.bounded``), and with
    ``Config(bounded="all")`` everywhere. Samples that arrive after it are in the rank's next average; call
    ``session.flush(optimizer)``, or :meth:`flush`, at the end of training. Otherwise the average is exact: it
    includes every rank. Use one Budget for each model: it knows parameters by their order and sizes.

    ``target``: a :class:`Communicator`, what :func:`attach` returned, or a process group on the
    ``optireduce`` backend. ``micro_batches``: how many make a full step, where the batches have no ``len()``;
    no more are taken. ``samples``: how many samples a batch holds, for instance ``len``; every micro-batch
    counts as one without it. With it the loss must be a sum over samples, not their mean. ``clock``: give one
    that waits for the device where computing is asynchronous, as on a GPU. ``scaler``: the GradScaler, unless
    a session knows it; samples that come later are then rescaled.
    """

    def __init__(
        self,
        target: Any,
        *,
        micro_batches: int | None = None,
        samples: Callable[[Any], int] | None = None,
        policy: ComputePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        scaler: Any = None,
    ) -> None:
        require(micro_batches is None or micro_batches >= 1, "micro_batches", micro_batches, "1 or more")
        self._target = target
        self._rank, self._size = _value(target.rank), _value(target.size)
        self._planned = micro_batches
        self._samples = samples
        self._policy = policy or ComputePolicy()
        self._clock = clock
        self._scaler = scaler
        self._steps = 0
        self._counted: int | None = None
        self._open: ComputeStep | None = None
        self._last_step: ComputeStep | None = None
        self._buckets: GradientBuckets | None = None
        self._sets: dict[str, AveragedSet] = {}  # by layout

    @property
    def limit_seconds(self) -> float:
        """The budget of the next step; infinite before enough steps are known."""
        return self._policy.limit_seconds

    @property
    def last_step(self) -> ComputeStep | None:
        """The computation behind the newest :meth:`average`; None before the first."""
        return self._last_step

    def micro_batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of one step, as many as the budget allows. A ``break`` counts the batch it is in.

        Calling it again before :meth:`average` begins the step anew; the gradients must then be cleared.
        """
        planned = self._planned
        if planned is None:
            if not isinstance(batches, Sized):
                raise TypeError(
                    f"batches is a {type(batches).__name__} without len(): give Budget(micro_batches=...), "
                    f"the number of micro-batches in a step"
                )
            planned = len(batches)
        self._open = step = ComputeStep(planned, self.limit_seconds)
        return self._run(step, iter(batches))

    def count(self, samples: int) -> None:
        """Inside the loop: the current micro-batch holds so many samples. 0: its gradient was thrown away."""
        require(samples >= 0, "samples", samples, "0 or more")
        self._counted = samples

    def average(self, parameters: Iterable[torch.Tensor]) -> StepReport:
        """Replace the gradients by their mean over the samples of all ranks, and wait for it.

        Collective. Parameters without a gradient here get one if another rank had one.
        """
        step = self._open
        if step is None:
            raise RuntimeError("average() needs a step: iterate over budget.micro_batches(...) before it")
        if step.samples > MOST_WEIGHT:
            raise ValueError(
                f"the step has {step.samples} samples on this rank: at most {MOST_WEIGHT} can be counted; "
                f"count larger units, alike on every rank"
            )
        started = time.monotonic()
        buckets = self._buckets_for([parameter for parameter in parameters if parameter.requires_grad])
        reports, notes = self._exchange(buckets, step)
        self._policy.observe(_full_seconds_of(notes))
        self._open, self._last_step = None, step
        self._steps += 1
        return step_report(self._steps - 1, reports, time.monotonic() - started)

    def flush(self) -> bool:
        """Replace the gradients by the mean over the samples that were in no average, because they were late,
        and wait for it. For the end of training, where no session does it::

            if budget.flush():
                optimizer.step()

        Collective and exact. False: there are none, the gradients are zero, and there is no step to take.
        """
        return flush(self._target, list(self._sets.values()))

    def _run(self, step: ComputeStep, batches: Iterator[T]) -> Iterator[T]:
        began = self._clock()
        while step.stopped_early and step.has_time():
            try:
                batch = next(batches)
            except StopIteration:
                step.planned = step.micro_batches  # there are no more: this is a full set
                return
            self._counted = None
            try:
                yield batch
            finally:
                step.samples += self._samples_in(batch)
                step.micro_batches += 1
                step.seconds = self._clock() - began

    def _samples_in(self, batch: Any) -> int:
        if self._counted is not None:
            return self._counted
        return 1 if self._samples is None else int(self._samples(batch))

    def _buckets_for(self, parameters: list[torch.Tensor]) -> GradientBuckets:
        from .gradient_buckets import GradientBuckets

        if self._buckets is None or not self._buckets.serves(parameters):
            self._buckets = GradientBuckets(parameters, notes=2 * self._size)
        layout = self._buckets.layout
        if layout not in self._sets:
            self._sets[layout] = sets_of(self._target).add(parameters, notes=2 * self._size)
        self._sets[layout].follow(parameters)
        return self._buckets

    def _exchange(self, buckets: GradientBuckets, step: ComputeStep) -> tuple[list[Report], list[float]]:
        """All-reduce the gradients together with a note of this rank's pace."""
        notes = [0.0] * (2 * self._size)
        # A mean divides by weights that nobody knows beforehand; so it does to the 1 beside each time.
        notes[2 * self._rank : 2 * self._rank + 2] = [step.full_seconds, 1.0]
        buckets.fill(notes)
        self._buckets = None  # if this fails, the engine may still write to these buffers
        streams = self._sets[buckets.layout].streams()
        handles = [
            self._target.all_reduce_async(
                buffer, "mean", weight=step.samples, stream=stream, scale=self._scale()
            )
            for buffer, stream in zip(buckets.buffers(), streams, strict=False)
        ]
        reports = [handle.wait() for handle in handles]
        self._buckets = buckets
        return reports, buckets.copy_back()

    def _scale(self) -> float:
        if self._scaler is not None:
            return float(self._scaler.get_scale())
        return float(getattr(self._target, "loss_scale", 1.0))


def flush(target: Any, sets: list[AveragedSet]) -> bool:
    """Replace the gradients by what is left of these sets; whether any of them is not zero."""
    for each in sets:
        each.clear()
    found = False
    for each in sets:  # all of them: the calls are collective
        found = flush_one(target, each) or found
    return found


def flush_one(target: Any, averaged: AveragedSet) -> bool:
    """Without samples of its own, a rank contributes what is left of earlier ones. A rank that is lost fails
    the same operations on all others: these are repeated without it, and find the same."""
    buckets = averaged.buckets()
    waiting = list(zip(buckets.buffers(), averaged.streams(), strict=False))
    while waiting:
        started: list[tuple[Any, Handle]] = [
            (each, target.all_reduce_async(each[0], "mean", weight=0, stream=each[1], exact=True))
            for each in waiting
        ]
        waiting = []
        for each, handle in started:
            try:
                handle.wait()
            except RankLostError:
                if getattr(target, "fixed_membership", True):
                    raise
                waiting.append(each)
    return averaged.add(buckets)


def _full_seconds_of(notes: Sequence[float]) -> list[float]:
    """Each rank's time from its note: the mean of its last steps' where some came late. Ranks without samples
    gave none, and notes that are late are in a later average."""
    return [seconds / one for seconds, one in zip(notes[::2], notes[1::2], strict=True) if one > 0]


def _value(number: Any) -> int:
    return int(number() if callable(number) else number)
