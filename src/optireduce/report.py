"""What an operation and a training step tell about themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Literal

from . import _core

ClosedBy = Literal["complete", "early", "deadline"]


@dataclass(frozen=True)
class Report:
    """How one all-reduce went on this rank. Sizes are in bytes of the form in which it travels
    (``Config.wire``)."""

    operation: int
    """Number of the operation in its group, the same on every rank. -1: it needed no communication."""
    bytes: int
    """Size of the reduced buffer."""
    elapsed_seconds: float
    """From the local start to the local end."""
    stood_still_seconds: float = 0.0
    """Of these, the time in which this process should have run and did not: it was stopped, or other
    processes had its cores. It does not count towards deadlines."""
    repaired_bytes: int = 0
    """Bytes that arrived only after a repeated request."""
    bounded: bool = False
    """Whether it had a deadline. An exact operation includes every contribution, or fails."""
    closed_by: ClosedBy = "complete"
    """What ended the shard of this rank: all contributions were there, the early bound (best effort only), or
    the deadline."""
    view: int = 0
    """Number of the membership view."""
    members: tuple[int, ...] = ()
    """Ranks of this view."""
    excluded: Mapping[int, int] = field(default_factory=dict, hash=False)
    """For each rank, the bytes of its contribution that no decision includes. The same on all members."""
    void_bytes: int = 0
    """Bytes without any included contribution; they count as excluded for every member."""
    carried_bytes: int = 0
    """Bytes of this rank's residual that went along with this contribution."""
    residual_bytes: int = 0
    """Bytes of this rank's contribution that were excluded and are kept for the next one."""
    dropped_bytes: int = 0
    """Bytes of this rank's excluded contribution that were infinite or NaN and are not kept."""
    oldest_steps: int = 0
    """Age of this rank's oldest residual, in steps."""
    non_finite: tuple[int, ...] = ()
    """Ranks that sent infinities or NaNs to this one, which reduces a part of the buffer."""
    waited_for: int | None = None
    """The rank whose contribution to this rank's shard came last."""
    waited_seconds: float = 0.0
    """How much later than the median rank it came."""
    behind_seconds: float = 0.0
    """How much later than the median peer this rank started the operation; negative: earlier."""
    deadline_seconds: float = 0.0
    """The deadline that held; 0: none."""
    usual_seconds: float = 0.0
    """What an operation of this kind usually takes here."""
    incast: int = 0
    """How many senders at once this rank asks for."""
    window_bytes: int = 0
    """The smallest window towards any peer."""
    rtt_seconds: float = 0.0
    """The largest smoothed round-trip time to any peer."""
    bytes_per_second: float = 0.0
    """The rate at which this rank sends, all peers together."""
    lost_contribution_bytes: int = 0
    """Best effort only: bytes times the share of the ranks whose contribution to them is missing."""
    lost_decision_bytes: int = 0
    """Best effort only: bytes of the result that did not come back and are zero here."""
    early_seconds: float = 0.0
    """Best effort only: the usual time (the papers' tC), from which the early bound is taken."""
    early_fraction: float = 0.0
    """Best effort only: the share of ``early_seconds`` that is waited once all senders are through (x)."""

    @property
    def excluded_share(self) -> float:
        """Excluded share of all members' contributions, from 0 to 1. The same on all members."""
        return _share(sum(self.excluded.values()), self.bytes * len(self.members))

    @property
    def loss_share(self) -> float:
        """Best effort only: lost share of the buffer, both stages together, from 0 to 1."""
        return _share(self.lost_contribution_bytes + self.lost_decision_bytes, self.bytes)

    @property
    def timed_out(self) -> bool:
        """Whether the deadline closed the shard of this rank."""
        return self.closed_by == "deadline"


@dataclass(frozen=True)
class StepReport:
    """How the gradient exchange of one training step went on this rank; see Report for the fields."""

    step: int
    """Gradient exchanges before this one; backward passes under ``no_sync`` do not count."""
    buckets: int
    bytes: int
    elapsed_seconds: float
    """From the first bucket's start to the last one's end; overlaps with the backward pass."""
    repaired_bytes: int = 0
    excluded: Mapping[int, int] = field(default_factory=dict, hash=False)
    excluded_share: float = 0.0
    void_bytes: int = 0
    carried_bytes: int = 0
    residual_bytes: int = 0
    dropped_bytes: int = 0
    oldest_steps: int = 0
    waited_for: int | None = None
    """The rank that this rank waited for longest, in any bucket."""
    waited_seconds: float = 0.0
    view: int = 0
    members: tuple[int, ...] = ()
    non_finite: tuple[int, ...] = ()
    timed_out: bool = False
    """Whether the deadline closed the shard of this rank in any bucket."""
    loss_share: float = 0.0
    """Best effort only."""


_NAMES = tuple(known.name for known in fields(Report))
_VALUES = attrgetter(*_NAMES)


def report_of(raw: _core.Report) -> Report:
    """The core's report, whose fields have the same names, in Python's types."""
    # A frozen dataclass sets its fields one by one, and short operations would notice.
    report = object.__new__(Report)
    values = report.__dict__
    values.update(zip(_NAMES, _VALUES(raw), strict=True))
    values["excluded"] = dict(values["excluded"])
    values["members"] = tuple(values["members"])
    values["non_finite"] = tuple(values["non_finite"])
    return report


_SUMS = ("bytes", "repaired_bytes", "void_bytes", "carried_bytes", "residual_bytes", "dropped_bytes")


def step_report(step: int, reports: Iterable[Report], elapsed_seconds: float) -> StepReport:
    """The reports of a step's buckets as one."""
    reports = list(reports)
    excluded: dict[int, int] = {}
    for report in reports:
        for rank, count in report.excluded.items():
            excluded[rank] = excluded.get(rank, 0) + count
    slowest = max(reports, key=lambda report: report.waited_seconds)
    newest = max(reports, key=lambda report: report.view)
    lost = sum(report.lost_contribution_bytes + report.lost_decision_bytes for report in reports)
    return StepReport(
        step=step,
        buckets=len(reports),
        elapsed_seconds=elapsed_seconds,
        excluded=excluded,
        excluded_share=_share(sum(excluded.values()), sum(r.bytes * len(r.members) for r in reports)),
        oldest_steps=max(report.oldest_steps for report in reports),
        waited_for=slowest.waited_for,
        waited_seconds=slowest.waited_seconds,
        view=newest.view,
        members=newest.members,
        non_finite=tuple(sorted({rank for report in reports for rank in report.non_finite})),
        timed_out=any(report.timed_out for report in reports),
        loss_share=_share(lost, sum(report.bytes for report in reports)),
        **{name: sum(getattr(report, name) for report in reports) for name in _SUMS},
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
