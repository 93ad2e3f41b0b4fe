"""The protocol itself, over a simulated network: any number of ranks in one process, in virtual time.

A seed repeats a run exactly. What the network does to packets, and what becomes of the operation on each
rank, are results to look at: a timeout or a mismatch is a report here, not an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from .buffers import Buffer, as_buffer
from .dtypes import Op, op_code

NEVER = math.inf
"""Start time of a rank that does not take part."""

_TIMEOUT_SECONDS = 60.0
_BOUND_SECONDS = 3600.0


@dataclass(frozen=True)
class Link:
    """One direction between two ranks. Probabilities are per packet, times in seconds."""

    bits_per_second: float = 0.0
    """0: unlimited."""
    delay_seconds: float = 50e-6
    jitter_seconds: float = 0.0
    """Added to the delay, uniform from 0; reorders packets."""
    loss: float = 0.0
    reorder: float = 0.0
    reorder_seconds: float = 500e-6
    """How much longer a reordered packet takes, at most."""
    duplicate: float = 0.0
    queue_bytes: int = 0
    """Bytes that may wait for the link; more are dropped. 0: no limit."""


class Cut(NamedTuple):
    """Nothing that ``source`` sends to ``destination`` in this time arrives."""

    source: int
    destination: int
    begin_seconds: float
    end_seconds: float


class Pause(NamedTuple):
    """The rank does nothing in this time: its packets wait."""

    rank: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Operation:
    """One all-reduce of a run: an array for each rank, reduced in place."""

    arrays: Sequence[Any]
    op: Op = "sum"
    start_seconds: Sequence[float] | None = None
    """When each rank calls it, after the beginning of the run; None: all at once."""


@dataclass(frozen=True)
class Network:
    """What is simulated. Every option has a default; ``link`` describes all links but those in ``links``."""

    ranks: int
    seed: int = 0
    link: Link = Link()
    links: Mapping[tuple[int, int], Link] | None = None
    """Other links, by source and destination."""
    cuts: Iterable[Cut] = ()
    pauses: Iterable[Pause] = ()
    coalesce: float = 0.5
    """Share of batches that arrive in one piece, as with GRO. 1 simulates fastest."""
    wake_seconds: float = 0.0
    """A rank looks at its packets up to so long after the first one came."""
    receive_buffer_bytes: int = 0
    """Bytes that may wait at a rank; more are dropped. 0: no limit."""
    payload_bytes: int = 1408
    window_bytes: int = 256 * 1024
    early_bytes: int = 64 * 1024 * 1024
    max_events: int = 100_000_000
    """A run that takes more ends with RuntimeError."""


class Simulation:
    """A running network: endpoints keep their state from one run to the next."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._core = _core.Simulation(_options(network))

    def all_reduce(
        self,
        arrays: Sequence[Any],
        op: Op = "sum",
        *,
        start_seconds: Sequence[float] | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> list[_core.Report | None]:
        """One operation, in place; each rank's report, None where it never started."""
        return self.run([Operation(arrays, op, start_seconds)], timeout_seconds=timeout_seconds)[0]

    def run(
        self,
        operations: Sequence[Operation],
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        bound_seconds: float = _BOUND_SECONDS,
    ) -> list[list[_core.Report | None]]:
        """Several operations, which every rank calls in this order; the reports by operation and rank.

        RuntimeError if there is no end after ``bound_seconds`` of virtual time.
        """
        buffers = [[as_buffer(array) for array in operation.arrays] for operation in operations]
        calls = [_calls(operation, mine) for operation, mine in zip(operations, buffers, strict=True)]
        reports = self._core.run(calls, timeout_seconds, bound_seconds)
        for row, mine in zip(reports, buffers, strict=True):
            _copy_back(row, mine)
        return reports

    def settle(self, bound_seconds: float = 10.0) -> bool:
        """Run on until nothing is under way any more; False if that takes longer."""
        return self._core.settle(bound_seconds)

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


def _calls(operation: Operation, buffers: list[Buffer]) -> list[tuple[int, int, int, int, float]]:
    starts = operation.start_seconds
    if starts is not None and len(starts) != len(buffers):
        raise ValueError(
            f"start_seconds has {len(starts)} entries: it must have one for each of {len(buffers)} arrays"
        )
    code = op_code(operation.op)
    return [
        (b.pointer, b.elements, b.dtype.code, code, 0.0 if starts is None else starts[rank])
        for rank, b in enumerate(buffers)
    ]


def _copy_back(reports: list[_core.Report | None], buffers: list[Buffer]) -> None:
    for report, buffer in zip(reports, buffers, strict=True):
        if report is not None and report.error_code == 0 and buffer.copy_back is not None:
            buffer.copy_back()


def _options(network: Network) -> _core.SimulationOptions:
    options = _core.SimulationOptions()
    for name in (
        "ranks",
        "seed",
        "coalesce",
        "wake_seconds",
        "receive_buffer_bytes",
        "payload_bytes",
        "window_bytes",
        "early_bytes",
        "max_events",
    ):
        setattr(options, name, getattr(network, name))
    options.link = _link_options(network.link)
    for (source, destination), link in (network.links or {}).items():
        options.set_link(source, destination, _link_options(link))
    for cut in network.cuts:
        options.add_cut(*cut)
    for pause in network.pauses:
        options.add_pause(*pause)
    return options


def _link_options(link: Link) -> _core.LinkOptions:
    options = _core.LinkOptions()
    for name in Link.__dataclass_fields__:
        setattr(options, name, getattr(link, name))
    return options
