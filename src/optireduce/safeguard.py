"""What to do with a step that lost too much: agreed by all ranks, because a rank that skips alone is worse
off than with any loss.

After a step's gradients every rank tells what it lost in a short all-reduce. One rank adds these up, with
what has come by the deadline, and everybody decides by its result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .dtypes import DTYPES, OPS
from .errors import TrainingHaltedError
from .report import PeerLoss, StepReport
from .transport import Operation, Transport

_logger = logging.getLogger("optireduce")


@dataclass(frozen=True)
class Verdict:
    """What all ranks know about a step."""

    step: int
    lost: float
    """Mean over the ranks of the share of the gradient that each lost."""
    lost_by_rank: tuple[float, ...]
    """The share that each rank lost."""
    lost_from_rank: tuple[float, ...]
    """The share of each rank's packets that did not reach the others, on average."""
    non_finite: tuple[int, ...]
    """Ranks that sent infinities or NaNs."""
    known: bool = True
    """Whether the result came back to this rank in time; if not, it goes on as if nothing were wrong."""


class Statement:
    """One rank's part in the exchange about a step: three numbers for each rank."""

    def __init__(
        self,
        transport: Transport,
        report: StepReport,
        losses: Mapping[int, PeerLoss],
        must_complete: bool = False,
    ) -> None:
        self._step = report.step
        self._ranks = transport.size
        self._buffer = torch.zeros(3, self._ranks, dtype=torch.float32)
        self._buffer[0, transport.rank] = report.loss_share
        for rank, lost in losses.items():
            # A rank sends everybody its contribution to one part of the bucket, and the part that it reduces.
            sent = 2 * report.bytes / self._ranks
            self._buffer[1, rank] = (lost.contributions_bytes + lost.reduced_bytes) / sent if sent else 0.0
        for rank in report.non_finite:
            self._buffer[2, rank] = 1.0
        self._operation: Operation = transport.start(
            self._buffer.data_ptr(),
            self._buffer.numel(),
            DTYPES["float32"],
            OPS["mean"],
            gradient=True,
            patience_bytes=report.bytes,
            repairs=True,
            must_complete=must_complete,
            keep_alive=self._buffer,
        )

    def verdict(self) -> Verdict:
        """Wait for what came of it."""
        self._operation.wait()
        report = self._operation.result()
        by_rank, from_rank, non_finite = self._buffer.tolist()
        others = max(self._ranks - 1, 1)
        return Verdict(
            step=self._step,
            lost=sum(by_rank),
            lost_by_rank=tuple(share * self._ranks for share in by_rank),
            lost_from_rank=tuple(share * self._ranks / others for share in from_rank),
            non_finite=tuple(rank for rank, told in enumerate(non_finite) if told > 0),
            known=report.reduced_lost_bytes == 0,
        )


class Safeguard:
    """Judges verdicts: skip, go on, or halt. The same on all ranks, because the verdicts are."""

    def __init__(self, skip_above: float, halt_after: int) -> None:
        self._skip_above = skip_above
        self._halt_after = halt_after
        self._in_a_row = 0
        self._reported: tuple[int, ...] = ()
        self.skipped_steps = 0
        self.unknown_verdicts = 0

    def may_step(self, verdict: Verdict, losses: Mapping[int, PeerLoss]) -> bool:
        """Whether the optimizer should take this step. ``losses``: what this rank itself missed, for the
        error."""
        self._tell_non_finite(verdict)
        self.unknown_verdicts += not verdict.known
        if verdict.lost <= self._skip_above:
            self._in_a_row = 0
            return True
        self.skipped_steps += 1
        self._in_a_row += 1
        _logger.warning(
            "step %d lost %.1f %% of its gradient and is skipped on all ranks (%d in a row)",
            verdict.step,
            verdict.lost * 100,
            self._in_a_row,
        )
        if self._in_a_row >= self._halt_after:
            raise _halted(verdict, self._in_a_row, self._skip_above, losses)
        return False

    def _tell_non_finite(self, verdict: Verdict) -> None:
        if verdict.non_finite and verdict.non_finite != self._reported:
            ranks = ", ".join(map(str, verdict.non_finite))
            _logger.warning("step %d: infinities or NaNs came from rank %s", verdict.step, ranks)
        self._reported = verdict.non_finite


def _halted(
    verdict: Verdict, steps: int, skip_above: float, losses: Mapping[int, PeerLoss]
) -> TrainingHaltedError:
    average = sum(verdict.lost_from_rank) / len(verdict.lost_from_rank)
    senders = _above(verdict.lost_from_rank, average)
    receivers = _above(verdict.lost_by_rank, verdict.lost)
    here = ", ".join(
        f"from rank {rank} {lost.contributions_bytes + lost.reduced_bytes} bytes"
        for rank, lost in sorted(losses.items())
    )
    return TrainingHaltedError(
        f"{steps} steps in a row lost more than skip_above = {skip_above:.0%} of their gradient (the last, "
        f"step {verdict.step}, {verdict.lost:.0%}). Most was lost on the way from rank {_list(senders)}; "
        f"most is missing on rank {_list(receivers)}. This rank missed: {here or 'nothing'}. Check the links "
        f"and hosts of these ranks, or raise skip_above or halt_after",
        ranks=senders,
    )


def _above(shares: Sequence[float], average: float) -> list[int]:
    """Those that stand out; all, if none does."""
    found = [rank for rank, share in enumerate(shares) if share > 1.5 * average]
    return found or list(range(len(shares)))


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
