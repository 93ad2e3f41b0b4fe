"""A run of all systems side by side, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ...lab import Lab
from ...page.quantiles import percentile
from ..cpu import CpuMeter, CpuUse
from ..places import Shared
from ..ranks import Ranks, Record
from .plan import RANK_MODULE, Plan, seats

_STOLEN_SECONDS = 0.02  # two ticks: one may have begun long before

Operation = dict[str, Any]  # what one rank tells of one operation


@dataclass
class Measured:
    """Everything the ranks told about one system. Lists have an entry for each rank."""

    operations: list[list[Operation]]
    counters: list[dict[str, float]] = field(default_factory=list)
    sent_bytes: int = 0  # of frames: what all ranks saw their hosts send
    cpu_seconds: float = 0.0  # of all ranks together

    def seconds(self) -> list[float]:
        """Of each operation, its slowest rank's time."""
        return [max(times) for times in self._by_operation("seconds")]

    def missing_shares(self) -> list[float]:
        """Of each operation, the share of the contributions that missed the deadline, mean over the ranks."""
        return [fmean(shares) for shares in self._by_operation("missing_share")]

    def calm(self) -> Measured:
        """Without the operations during which this machine stood still: no network, and nobody's fault."""
        stolen = [max(times) for times in self._by_operation("stolen")]
        keep = [index for index, seconds in enumerate(stolen) if seconds < _STOLEN_SECONDS]
        return Measured([[rank[index] for index in keep] for rank in self.operations])

    def closed_by(self) -> Counter[str]:
        """How often ranks ended an operation for which reason; empty for builds that do not tell."""
        told = (operation.get("closed_by") for rank in self.operations for operation in rank)
        return Counter(reason for reason in told if reason is not None)

    def wrong(self) -> int:
        """Elements, over all ranks and operations, that differ from the mean though nothing was missing."""
        return sum(operation["wrong"] for rank in self.operations for operation in rank)

    def unequal(self) -> int:
        """Operations whose results were not the same bits on all ranks."""
        return sum(len(set(sums)) > 1 for sums in self._by_operation("checksum"))

    def counted(self, name: str) -> float:
        """One counter, summed over the ranks."""
        return sum(counters.get(name, 0) for counters in self.counters)

    def _by_operation(self, name: str) -> list[tuple[float, ...]]:
        return list(zip(*([op.get(name, 0.0) for op in rank] for rank in self.operations), strict=True))


@dataclass
class Comparison:
    """All systems of one run."""

    systems: dict[str, Measured]
    cpu: CpuUse | None = None


@dataclass(frozen=True)
class Figures:
    """One row of the table. Times in seconds."""

    system: str
    operations: int
    p50: float
    p90: float
    p99: float
    most: float
    mean: float
    missing_mean: float
    missing_most: float
    requests: float
    resent_bytes: float
    wrong: int
    unequal: int
    sent_bytes: float  # of frames, by one host in one operation
    cpu_seconds: float  # of all ranks together, in one operation
    disturbed: int
    calm_tail: float
    calm_missing_mean: float
    closed_by: dict[str, int]

    @property
    def tail(self) -> float:
        """p99 over p50."""
        return self.p99 / self.p50


def figures(system: str, measured: Measured) -> Figures:
    """The row of one system."""
    seconds, missing = measured.seconds(), measured.missing_shares()
    calm = measured.calm()
    calm_seconds = calm.seconds() or seconds
    return Figures(
        system=system,
        operations=len(seconds),
        p50=median(seconds),
        p90=percentile(seconds, 0.90),
        p99=percentile(seconds, 0.99),
        most=max(seconds),
        mean=fmean(seconds),
        missing_mean=fmean(missing),
        missing_most=max(missing),
        requests=measured.counted("requests_sent"),
        resent_bytes=measured.counted("resent_bytes"),
        wrong=measured.wrong(),
        unequal=measured.unequal(),
        sent_bytes=measured.sent_bytes / (len(seconds) * len(measured.operations)),
        cpu_seconds=measured.cpu_seconds / len(seconds),
        disturbed=len(seconds) - len(calm.seconds()),
        calm_tail=percentile(calm_seconds, 0.99) / median(calm_seconds),
        calm_missing_mean=fmean(calm.missing_shares() or missing),
        closed_by=dict(measured.closed_by()),
    )


def limit_seconds(plan: Plan, bits_per_second: float, frame_bytes: int, payload_bytes: int) -> float:
    """The least time in which links of this speed can carry one all-reduce, packet headers included: ranks of
    a host need not send each other anything through them."""
    payload = 2 * (plan.hosts - 1) / plan.hosts * plan.size
    return payload * frame_bytes / payload_bytes * 8 / bits_per_second


def compare(
    lab: Lab, plan: Plan, disturb: Callable[[], None], advance: Callable[[str, int], None]
) -> Comparison:
    """Run the plan. ``disturb`` is called when all groups have formed; ``advance(note, operations)`` as the
    run proceeds."""
    found = Comparison({system.name: Measured([[] for _ in range(plan.ranks)]) for system in plan.systems})
    rank_seconds, meter = 0.0, CpuMeter()
    place = Shared(lab, plan.per_host)
    with Ranks(place, RANK_MODULE, seats(lab, plan), mpi=plan.needs_mpi) as ranks:
        for told in ranks.records(begin=disturb):
            if told is None:
                continue
            rank, record = told
            if record["kind"] == "warm":
                meter = CpuMeter()
            elif record["kind"] == "cpu":
                rank_seconds += record["seconds"]
                found.cpu = meter.read(rank_seconds)
            else:
                _note(found, rank, record)
            if rank == 0:
                advance(*_progress(record))
    return found


def _note(found: Comparison, rank: int, record: Record) -> None:
    if record["kind"] == "block":
        measured = found.systems[record["system"]]
        measured.operations[rank] += record["operations"]
        measured.sent_bytes += record["sent_bytes"]
        measured.cpu_seconds += record["cpu_seconds"]
    elif record["kind"] == "counters":
        found.systems[record["system"]].counters.append(record["counters"])


def _progress(record: Record) -> tuple[str, int]:
    if record["kind"] == "block":
        return _median_note(record["system"], record["operations"]), len(record["operations"])
    return (f"{record['system']} is warm" if record["kind"] == "warm" else ""), 0


def _median_note(system: str, operations: Sequence[Operation]) -> str:
    return f"{system}: {median(operation['seconds'] for operation in operations) * 1e3:.0f} ms"
