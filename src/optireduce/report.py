"""What an operation and a training step tell about themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from . import _core

ClosedBy = Literal["complete", "early", "deadline"]


class PeerLoss(NamedTuple):
    """What one peer owed this rank and did not deliver in time."""

    contributions_bytes: int
    """Of its contributions to the part of the buffer that this rank reduced."""
    reduced_bytes: int
    """Of the part that it reduced for everybody."""


@dataclass(frozen=True)
class Report:
    """How one all-reduce went on this rank."""

    operation: int
    """Number of the operation in its group, the same on every rank. -1 for one that needed no
    communication."""
    bytes: int
    """Size of the reduced buffer, in the form in which it travels (``Config.wire``), as all bytes here."""
    elapsed_seconds: float
    """From the local start to the local end."""
    stood_still_seconds: float = 0.0
    """Of these, the time in which this process should have run and did not: it was stopped, or others had its
    cores, or its machine stood still. It does not count towards deadlines."""
    quorum_wait_seconds: float = 0.0
    """Of these, the time in which fewer than ``Config.min_ranks`` ranks were there to begin with."""
    repaired_bytes: int = 0
    """Bytes that came only after a repeated request."""
    bounded: bool = False
    """Whether it had a deadline. An operation without one loses nothing, or fails."""
    closed_by: ClosedBy = "complete"
    """What ended it: everything was there; or all senders were through and the early bound had passed; or
    the deadline."""
    contributions_lost_bytes: int = 0
    """Of the whole result: bytes times the share of the ranks whose contribution to them is missing. The mean
    was taken over those that came; absent ranks are not counted."""
    reduced_lost_bytes: int = 0
    """Bytes of the result that never came back from the ranks that reduced them; they are zero, or, where
    they can still be corrected (``Config.late_repair``), a share of what this rank itself contributed."""
    corrected_bytes: int = 0
    """Bytes that an earlier operation on the same buffer had lost and that came since: they have been added
    to this result."""
    non_finite: tuple[int, ...] = ()
    """Ranks that sent infinities or NaNs to this one, which reduces a part of the buffer."""
    lost_by_peer: Mapping[int, PeerLoss] = field(default_factory=dict, hash=False)
    """What each rank owed, for ranks that owed anything."""
    absent: tuple[int, ...] = ()
    """Ranks that were not waited for: nothing had come from them for ``absent_after`` operations."""
    bound_seconds: float = 0.0
    """The deadline (the papers' tB) that held; 0 when there was none."""
    early_seconds: float = 0.0
    """The usual time (the papers' tC), from which the early bound is taken."""
    early_fraction: float = 0.0
    """The share of ``early_seconds`` that is waited once all senders are through (the papers' x)."""
    incast: int = 0
    """How many senders at once this rank asks for."""
    window_bytes: int = 0
    """The smallest window towards any peer."""
    rtt_seconds: float = 0.0
    """The largest smoothed round-trip time to any peer."""
    rate_bytes_per_second: float = 0.0
    """The rate at which this rank sends, all peers together."""
    behind_seconds: float = 0.0
    """How much later than the median peer this rank started the operation; negative: earlier."""

    @property
    def lost_bytes(self) -> int:
        """Bytes lost in both stages."""
        return self.contributions_lost_bytes + self.reduced_lost_bytes

    @property
    def loss_share(self) -> float:
        """Lost share of the buffer, from 0 to 1."""
        return _share(self.lost_bytes, self.bytes)

    @property
    def contributions_lost_share(self) -> float:
        """The part of ``loss_share`` that was lost on the way to those who reduce."""
        return _share(self.contributions_lost_bytes, self.bytes)

    @property
    def reduced_lost_share(self) -> float:
        """The part of ``loss_share`` that was lost on the way back."""
        return _share(self.reduced_lost_bytes, self.bytes)

    @property
    def timed_out(self) -> bool:
        """Whether the deadline ended it."""
        return self.closed_by == "deadline"


@dataclass(frozen=True)
class StepReport:
    """How the gradient exchange of one training step went on this rank."""

    step: int
    """Gradient exchanges before this one; backward passes under ``no_sync`` do not count."""
    buckets: int
    bytes: int
    elapsed_seconds: float
    """From the first bucket's start to the last one's end; overlaps with the backward pass."""
    repaired_bytes: int = 0
    contributions_lost_bytes: int = 0
    reduced_lost_bytes: int = 0
    corrected_bytes: int = 0
    """Lost by earlier steps, added to this one's gradients."""
    non_finite: tuple[int, ...] = ()
    """Ranks that sent infinities or NaNs to this one."""
    timed_out: bool = False
    """Whether the deadline ended any bucket."""
    absent: tuple[int, ...] = ()
    """Ranks that some bucket did not wait for."""

    @property
    def lost_bytes(self) -> int:
        """Bytes lost in both stages, as in Report."""
        return self.contributions_lost_bytes + self.reduced_lost_bytes

    @property
    def loss_share(self) -> float:
        """Lost share of the step's gradient bytes, from 0 to 1."""
        return _share(self.lost_bytes, self.bytes)


def report_of(raw: _core.Report) -> Report:
    """The core's account in the users' terms; a failed operation has one too."""
    return Report(
        operation=raw.operation,
        bytes=raw.bytes,
        elapsed_seconds=raw.elapsed_seconds,
        stood_still_seconds=raw.stood_still_seconds,
        quorum_wait_seconds=raw.quorum_wait_seconds,
        repaired_bytes=raw.repaired_bytes,
        bounded=raw.bounded,
        closed_by=cast(ClosedBy, raw.closed_by),
        contributions_lost_bytes=raw.contributions_lost_bytes,
        reduced_lost_bytes=raw.reduced_lost_bytes,
        corrected_bytes=raw.corrected_bytes,
        non_finite=tuple(raw.non_finite),
        lost_by_peer={peer: PeerLoss(*lost) for peer, *lost in raw.lost_by_peer},
        absent=tuple(raw.absent),
        bound_seconds=raw.bound_seconds,
        early_seconds=raw.early_seconds,
        early_fraction=raw.early_fraction,
        incast=raw.incast,
        window_bytes=raw.window_bytes,
        rtt_seconds=raw.rtt_seconds,
        rate_bytes_per_second=raw.rate_bytes_per_second,
        behind_seconds=raw.behind_seconds,
    )


def step_report(step: int, reports: Iterable[Report], elapsed_seconds: float) -> StepReport:
    """The reports of a step's buckets as one."""
    reports = list(reports)
    return StepReport(
        step=step,
        buckets=len(reports),
        bytes=sum(report.bytes for report in reports),
        elapsed_seconds=elapsed_seconds,
        repaired_bytes=sum(report.repaired_bytes for report in reports),
        contributions_lost_bytes=sum(report.contributions_lost_bytes for report in reports),
        reduced_lost_bytes=sum(report.reduced_lost_bytes for report in reports),
        corrected_bytes=sum(report.corrected_bytes for report in reports),
        non_finite=tuple(sorted({rank for report in reports for rank in report.non_finite})),
        timed_out=any(report.timed_out for report in reports),
        absent=tuple(sorted({rank for report in reports for rank in report.absent})),
    )


def lost_by_peer(reports: Iterable[Report]) -> dict[int, PeerLoss]:
    """What each rank owed in all of these operations."""
    total: dict[int, PeerLoss] = {}
    for report in reports:
        for peer, lost in report.lost_by_peer.items():
            before = total.get(peer, PeerLoss(0, 0))
            total[peer] = PeerLoss(*(a + b for a, b in zip(before, lost, strict=True)))
    return total


def _share(lost: int, whole: int) -> float:
    return lost / whole if whole else 0.0
