"""From times to the figures in the table. Pure functions; GB is 10^9 bytes, as in nccl-tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ...page.quantiles import percentile
from .plan import Block, Verified

GB = 1e9


@dataclass(frozen=True)
class Spread:
    """A median with its extremes."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Row:
    """One backend at one size on one number of ranks."""

    nproc: int
    backend: str
    size: int
    iterations: int
    p50: float  # seconds, of the slowest rank
    p99: float
    algbw: float  # bytes per second
    busbw: float
    wrong: int
    cpu_seconds_per_gb: float
    ratio: Spread  # the first backend's p50 over this one's, round by round
    limit_share: float  # of the raw-UDP limit's speed
    socket_drops: int | None


def moved_bytes(nproc: int, size: int) -> int:
    """What all ranks together must send for one all-reduce of `size` bytes: 2(N-1)S."""
    return 2 * (nproc - 1) * size


def bus_bandwidth(algbw: float, nproc: int) -> float:
    """nccl-tests' busbw: what each rank's link carries, comparable between numbers of ranks."""
    return algbw * 2 * (nproc - 1) / nproc


def limit_seconds(nproc: int, size: int, flow_bytes_per_second: float, cores: int) -> float:
    """The time in which bare UDP could move the bytes of one all-reduce.

    One flow keeps two cores busy (sender, receiver), so C cores carry C/2 flows; N ranks use at most N cores.
    """
    flows = max(1.0, min(nproc, cores) / 2)
    return moved_bytes(nproc, size) / (flow_bytes_per_second * flows)


def spread(values: Iterable[float]) -> Spread:
    """Median, lowest and highest."""
    ordered = sorted(values)
    return Spread(median(ordered), ordered[0], ordered[-1])


def ratio_by_round(first: Sequence[Block], other: Sequence[Block]) -> Spread:
    """How many times faster `other` is than `first`, comparing only blocks of the same round."""
    p50_of_first = {block.round_index: median(block.seconds) for block in first}
    return spread(p50_of_first[block.round_index] / median(block.seconds) for block in other)


def summarize(
    nproc: int,
    backends: Sequence[str],
    records: Sequence[Block | Verified],
    flow_bytes_per_second: float,
    cores: int,
) -> list[Row]:
    """The rows of one table: by size, then by backend, in the order of the records and of `backends`."""
    sizes = list(dict.fromkeys(record.size for record in records))
    rows = []
    for size in sizes:
        limit = limit_seconds(nproc, size, flow_bytes_per_second, cores)
        first = _blocks(records, backends[0], size)
        for backend in backends:
            blocks = _blocks(records, backend, size)
            wrong = sum(
                r.wrong for r in records if isinstance(r, Verified) and (r.backend, r.size) == (backend, size)
            )
            rows.append(_row(nproc, blocks, ratio_by_round(first, blocks), wrong, limit))
    return rows


def _blocks(records: Sequence[Block | Verified], backend: str, size: int) -> list[Block]:
    return [r for r in records if isinstance(r, Block) and (r.backend, r.size) == (backend, size)]


def _row(nproc: int, blocks: Sequence[Block], ratio: Spread, wrong: int, limit: float) -> Row:
    size = blocks[0].size
    seconds = [value for block in blocks for value in block.seconds]
    p50 = median(seconds)
    gigabytes = moved_bytes(nproc, size) * len(seconds) / GB
    drops = [block.socket_drops for block in blocks if block.socket_drops is not None]
    return Row(
        nproc=nproc,
        backend=blocks[0].backend,
        size=size,
        iterations=len(seconds),
        p50=p50,
        p99=percentile(seconds, 0.99),
        algbw=size / p50,
        busbw=bus_bandwidth(size / p50, nproc),
        wrong=wrong,
        cpu_seconds_per_gb=sum(block.cpu_seconds for block in blocks) / gigabytes,
        ratio=ratio,
        limit_share=limit / p50,
        socket_drops=sum(drops) if drops else None,
    )
