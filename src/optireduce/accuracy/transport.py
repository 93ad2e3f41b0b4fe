"""How gradients get averaged: exactly, or by the protocol over a simulated network that loses data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from ..buffers import Buffer
from ..dtypes import DTYPES
from ..experiments.simulated_network import ForcedLoss, Link, Network, Port
from ..experiments.simulation import Operation, Simulation
from ..hadamard import Encoded
from ..wire import IdleBuffers, Lost, Travelling, Wire, lost_values, travelling
from .strategies import Hopeless, Loss, Strategy

_EXCLUDE_AT_MOST = 0.5  # the loss is forced: longer deadlines would not bring what is missing
_GIGABIT = 1e9
_SWITCH_QUEUE_BYTES = 256 * 1024
_COMPUTE_SECONDS = 2e-3  # between operations, in virtual time
_CACHE_LINE_BYTES = 64  # of which packets hold whole ones, so that no int8 block is cut
_FLOAT32 = DTYPES["float32"]
_GRADIENTS = 1  # the stream of all operations, by which residuals are kept

Rows: TypeAlias = npt.NDArray[np.float32]
"""One array for each rank."""


class Transport(Protocol):
    """What a training loop needs. Rows are changed in place."""

    def average(self, gradients: Rows, step: int) -> None:
        """Every row becomes what its rank gets of the mean."""
        ...

    def lost_share(self) -> float:
        """Of all gradient bytes that had to come over the network by a deadline, those that did not. With
        ``carry`` these are excluded contributions."""
        ...


class Exact:
    """The mean, the same for all."""

    def average(self, gradients: Rows, step: int) -> None:
        """Nothing can go wrong."""
        gradients[:] = gradients.mean(axis=0)

    def lost_share(self) -> float:
        """Nothing."""
        return 0.0


class Lossy:
    """The protocol itself. Its first operations are exact, as in real training."""

    def __init__(self, strategy: Strategy, loss: Loss, ranks: int, payload_bytes: int, seed: int) -> None:
        self._strategy, self._seed, self._ranks = strategy, seed, ranks
        self._simulation = Simulation(_network(strategy, loss, self._ranks, payload_bytes, seed))
        self._idle = IdleBuffers()
        self._lost_shares: list[float] = []

    def average(self, gradients: Rows, step: int) -> None:
        """By an all-reduce with a deadline."""
        seed = self._seed * 1_000_003 + step
        if self._strategy.hadamard:
            reports = self._average_encoded(gradients, seed, step)
        else:
            reports, _ = self._mean(list(gradients), seed, step)
        if reports[0].bounded and step >= self._simulation.network.warmup_operations:
            share = excluded_share(reports[0]) if self._strategy.carries else missing_share(reports)
            self._lost_shares.append(share)

    def lost_share(self) -> float:
        """The mean over all steps that had a deadline."""
        return float(np.mean(self._lost_shares)) if self._lost_shares else 0.0

    def _average_encoded(self, gradients: Rows, seed: int, step: int) -> list[_core.Report]:
        """As coefficients of a Hadamard transform; the signs must be others in every step."""
        elements = gradients.shape[1]
        encoded = [Encoded(row.ctypes.data, elements, _FLOAT32, seed, self._idle) for row in gradients]
        reports, lost = self._mean([on_the_way.wire.numpy() for on_the_way in encoded], seed, step)
        for on_the_way, lost_here in zip(encoded, lost, strict=True):
            on_the_way.decode(lost_here)
        return reports

    def _mean(self, arrays: Sequence[Rows], seed: int, step: int) -> tuple[list[_core.Report], list[Lost]]:
        """In the form in which the strategy lets them travel; what did not come back, of each rank."""
        forms = [
            travelling(
                self._strategy.wire,
                row.ctypes.data,
                row.size,
                _FLOAT32,
                seed * self._ranks + rank,
                self._idle,
            )
            for rank, row in enumerate(arrays)
        ]
        for form in forms:
            _narrow(form)
        buffers = [Buffer(form.pointer, form.elements, form.dtype, form, None) for form in forms]
        reports = self._run(buffers, step)
        lost = [lost_values(report, form) for report, form in zip(reports, forms, strict=True)]
        for form in forms:
            _widen(form)
            form.release()
        return reports, lost

    def _run(self, buffers: Sequence[Buffer], step: int) -> list[_core.Report]:
        starts = [_COMPUTE_SECONDS] * self._ranks
        operation = Operation(
            buffers, "mean", start_seconds=starts, bounded=True, stream=_GRADIENTS, step=step
        )
        return [_checked(report) for report in self._simulation.run([operation])[0]]


def transport_for(
    strategy: Strategy, loss: Loss | None, ranks: int, payload_bytes: int, seed: int
) -> Transport:
    """The strategy at work, for so many ranks."""
    if strategy.lossless:
        return Exact()
    if loss is None:
        raise ValueError(f"loss = None does not go with strategy {strategy.name!r}: say what it loses")
    return Lossy(strategy, loss, ranks, payload_bytes, seed)


def _payload_bytes(wire: Wire, as_float32: int) -> int:
    """About as many values in a packet, however they travel: shards of small models have few packets."""
    narrowed = as_float32 * {"bf16": 2, "int8": 1}.get(wire, 4) // 4
    return max(narrowed // _CACHE_LINE_BYTES, 1) * _CACHE_LINE_BYTES


def _network(strategy: Strategy, loss: Loss, ranks: int, payload_bytes: int, seed: int) -> Network:
    return Network(
        ranks,
        seed=seed,
        link=Link(delay_seconds=50e-6),
        egress=Port(_GIGABIT),
        ingress=Port(_GIGABIT, _SWITCH_QUEUE_BYTES),
        coalesce=1.0,
        payload_bytes=_payload_bytes(strategy.wire, payload_bytes),
        forced_loss=ForcedLoss(loss.pattern, loss.share, _hopeless(strategy, loss)),
        delivery=strategy.delivery,
        exclude_at_most=_EXCLUDE_AT_MOST,
        shuffle=strategy.shuffle,
    )


def _narrow(form: Travelling) -> None:
    """Round the values, as the engine does when it sends them."""
    if form.dtype == DTYPES["bfloat16"]:
        _core.bfloat16_encode(form.wide, form.values, form.pointer)
    elif form.wide:
        _core.int8_encode(form.wide, form.values, form.seed, form.pointer)


def _widen(form: Travelling) -> None:
    """Write the result back to the values."""
    if form.dtype == DTYPES["bfloat16"]:
        _core.bfloat16_decode(form.pointer, form.values, form.wide)
    elif form.wide:
        _core.int8_decode(form.pointer, form.values, form.wide)


def _hopeless(strategy: Strategy, loss: Loss) -> Hopeless:
    """A decision is repaired until it arrives, unless the transport is best-effort."""
    return "contributions" if strategy.carries and loss.hopeless == "everything" else loss.hopeless


def _checked(report: _core.Report | None) -> _core.Report:
    if report is None or report.error_code != 0:
        raise RuntimeError(f"a simulated operation failed: {report.error if report else 'no report'}")
    return report


def missing_share(reports: Sequence[_core.Report]) -> float:
    """Best effort: of both stages together. In each, all ranks wait for (ranks - 1) times the bucket."""
    ranks, size = len(reports), reports[0].bytes
    missing = sum(count for report in reports for _stage, _peer, _begin, count in report.holes)
    return missing / (2 * (ranks - 1) * size)


def excluded_share(report: _core.Report) -> float:
    """Carry: of the contributions that travel, those that no decision includes. Any rank's report tells."""
    travelling_bytes = (len(report.members) - 1) * report.bytes
    return sum(count for _rank, count in report.excluded) / travelling_bytes
