"""The protocol itself, over a simulated network: any number of ranks in one process, in virtual time.

A seed repeats a run exactly. What the network does to packets, and what becomes of the operation on each
rank, are results to look at: a timeout or a mismatch is a report here, not an exception.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import _core
from ..buffers import Buffer, as_buffer
from ..dtypes import Op, op_code
from .simulated_network import Network, core_options

T = TypeVar("T")

NEVER = math.inf
"""Start time of a rank that does not take part."""

_TIMEOUT_SECONDS = 60.0
_BOUND_SECONDS = 3600.0


@dataclass(frozen=True)
class Operation:
    """One all-reduce of a run: an array for each rank, reduced in place."""

    arrays: Sequence[Any]
    op: Op = "sum"
    start_seconds: Sequence[float] | None = None
    """When each rank calls it, after the beginning of the run; None: all at once."""
    follows_seconds: float | Sequence[float] | None = None
    """Instead of ``start_seconds``: how long after the end of its operation before each rank calls it, as in
    a training loop. One number for all ranks, or one for each."""
    bounded: bool = False
    """Whether it may have a deadline. Then ``stream`` must be set."""
    weights: Sequence[int] | None = None
    """Samples behind each rank's array, for a mean without a deadline; 0: the rank gives nothing. None: 1
    everywhere."""
    stream: int = 0
    """Names the sequence of operations on the same buffer, by which residuals are kept. 0: none."""
    step: int = 0
    """The training step; never less than that of the operation before. ``max_lag`` counts these."""


class Simulation:
    """A running network: endpoints keep their state from one run to the next."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._core = _core.Simulation(core_options(network))

    def all_reduce(
        self,
        arrays: Sequence[Any],
        op: Op = "sum",
        *,
        start_seconds: Sequence[float] | None = None,
        bounded: bool = False,
        weights: Sequence[int] | None = None,
        stream: int = 0,
        step: int = 0,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> list[_core.Report | None]:
        """One operation, in place; each rank's report, None where it never started or has crashed."""
        operation = Operation(
            arrays, op, start_seconds, bounded=bounded, weights=weights, stream=stream, step=step
        )
        return self.run([operation], timeout_seconds=timeout_seconds)[0]

    def run(
        self,
        operations: Sequence[Operation],
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        bound_seconds: float = _BOUND_SECONDS,
    ) -> list[list[_core.Report | None]]:
        """Several operations, which every rank calls in this order; the reports by operation and rank.

        Where a rank crashed there is none. RuntimeError if there is no end after ``bound_seconds`` of virtual
        time.
        """
        _check_order(operations)
        buffers = [[as_buffer(array) for array in operation.arrays] for operation in operations]
        calls = [_calls(operation, mine) for operation, mine in zip(operations, buffers, strict=True)]
        reports = self._core.run(calls, timeout_seconds, bound_seconds)
        for row, mine in zip(reports, buffers, strict=True):
            _copy_back(row, mine)
        return reports

    def settle(self, bound_seconds: float = 10.0) -> bool:
        """Run on until nothing is under way any more; False if that takes longer."""
        return self._core.settle(bound_seconds)

    def take_residual(self, rank: int, stream: int) -> bytes:
        """The values that a rank keeps for a stream, in their own type, and forgets; empty: none."""
        return self._core.take_residual(rank, stream)

    def stats(self, rank: int) -> dict[str, int]:
        """Counters of one rank's endpoint."""
        return self._core.stats(rank)

    def counters(self) -> dict[str, int]:
        """What the network did with the packets."""
        return self._core.counters()

    @property
    def now_seconds(self) -> float:
        """Virtual time since the network began."""
        return self._core.now_seconds

    @property
    def trace_hash(self) -> int:
        """One number for everything that happened so far: equal for equal seeds and operations."""
        return self._core.trace_hash


def _check_order(operations: Sequence[Operation]) -> None:
    if operations and operations[0].follows_seconds is not None:
        raise ValueError(
            f"follows_seconds = {operations[0].follows_seconds!r} of the first operation is not usable: it "
            f"has none before it in this run; use start_seconds"
        )


def _calls(operation: Operation, buffers: list[Buffer]) -> list[_core.SimulationCall]:
    ranks = len(buffers)
    follows = operation.follows_seconds is not None
    if operation.weights is not None and operation.bounded:
        raise ValueError(
            f"weights = {list(operation.weights)} is not usable with bounded = True: weighted means have no "
            f"deadline, and a rank without samples would count as excluded"
        )
    starts = _starts(operation, ranks)
    weights = _one_for_each("weights", operation.weights, ranks) or [1] * ranks
    return [
        _core.SimulationCall(
            buffer.pointer,
            buffer.elements,
            buffer.dtype.code,
            op_code(operation.op),
            start_seconds=start,
            follows=follows,
            bounded=operation.bounded,
            weight=weight,
            stream=operation.stream,
            step=operation.step,
        )
        for buffer, start, weight in zip(buffers, starts, weights, strict=True)
    ]


def _starts(operation: Operation, ranks: int) -> Sequence[float]:
    follows = operation.follows_seconds
    if follows is None:
        return _one_for_each("start_seconds", operation.start_seconds, ranks) or [0.0] * ranks
    if operation.start_seconds is not None:
        raise ValueError(
            f"follows_seconds = {follows!r} and start_seconds = {operation.start_seconds!r} exclude each "
            f"other: give one of them"
        )
    if isinstance(follows, (int, float)):
        return [follows] * ranks
    return _one_for_each("follows_seconds", follows, ranks) or []


def _one_for_each(name: str, values: Sequence[T] | None, ranks: int) -> Sequence[T] | None:
    if values is not None and len(values) != ranks:
        raise ValueError(f"{name} has {len(values)} entries: it must have one for each of {ranks} arrays")
    return values


def _copy_back(reports: list[_core.Report | None], buffers: list[Buffer]) -> None:
    for report, buffer in zip(reports, buffers, strict=True):
        if report is not None and report.error_code == 0 and buffer.copy_back is not None:
            buffer.copy_back()
