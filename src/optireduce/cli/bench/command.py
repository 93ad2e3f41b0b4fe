"""`optireduce bench`: check the options, run the ranks, show and keep the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID

from ...config import Config
from ...errors import ConfigError
from ..backends import parse_backends
from ..console import print_table, progress_bar, say
from ..errors import UsageError
from ..ranks import LocalRanks, process_context
from ..units import format_size, parse_count, parse_list, parse_size
from .plan import ELEMENT_BYTES, Block, Plan, Verified
from .raw_udp import measure_flow
from .report import Collected, as_document, usable_cores, write
from .statistics import GB, summarize
from .table import render
from .worker import OPERATION_SECONDS, run_rank

_MOST_RANKS = 36  # the sums that results are verified against are exact up to here
_FLOW_SECONDS = 0.3
_FLOW_REPETITIONS = 3
# A block is the longest silence; a rank's own operations fail before this and say more.
_SILENCE_SECONDS = 2.5 * OPERATION_SECONDS


def bench(
    backends: Annotated[
        str,
        typer.Option(
            help="Backends to compare; the first is what the others are compared with. optireduce:mac and "
            "optireduce:token: ours with that auth."
        ),
    ] = "gloo,optireduce",
    nproc: Annotated[str, typer.Option(help="Numbers of local ranks.")] = "2,4,8",
    sizes: Annotated[
        str, typer.Option(help="Tensor sizes in bytes; K, M and G are powers of 1024.")
    ] = "64K,1M,25M,100M",
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each backend gets its turn at each size.")
    ] = 3,
    dtype: Annotated[str, typer.Option(help=f"Element type: {', '.join(ELEMENT_BYTES)}.")] = "float32",
    iters: Annotated[
        int | None, typer.Option(min=1, help="Timed operations a turn (default: 4 to 50, by size).")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Operations before each turn that are not counted.")] = 2,
    rmem: Annotated[
        str | None,
        typer.Option(
            help="Receive buffer of optireduce's sockets in bytes; 208K is what stock Linux allows."
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write every time, the machine and the versions to this file.")
    ] = None,
) -> None:
    """Compare all-reduce backends on this machine: local ranks, loopback, same processes, taking turns.

    **Time** is that of the slowest rank, counted from a Gloo barrier that all ranks leave together. p50
    and p99 are over all iterations of all rounds. The ratio compares turns of the same round; shown are
    the median and the worst and best round. Results are checked once per size against the exact sum
    (#wrong counts elements over all ranks).

    **algbw** is size / time, **busbw** is algbw x 2(n-1)/n, as in nccl-tests. **CPU s/GB** is user +
    system time of all ranks and their threads, over the 2(N-1)S bytes they must move for a tensor of S
    bytes.

    **of raw UDP**: in the same run, one process sends another 64 KB datagrams over loopback (a credit
    every 4, so none is lost) and does nothing with them; its speed is bytes over the CPU time of the
    busier of the two, best of 3. Such a flow keeps 2 cores busy, so C cores carry C/2 flows (N ranks:
    at most N/2). The limit is the time in which these flows move the 2(N-1)S bytes, and the column is
    limit / time.
    """
    chosen = tuple(sorted(parse_list(nproc, "--nproc", _parse_nproc)))
    plan = Plan(
        backends=parse_backends(backends),
        sizes=parse_list(sizes, "--sizes", lambda text: parse_size(text, "--sizes")),
        dtype=_check_dtype(dtype),
        rounds=rounds,
        warmup=warmup,
        iterations=iters,
        receive_buffer_bytes=None if rmem is None else _parse_rmem(rmem),
    )
    _check_sizes(plan)
    _check_writable(json)
    collected = Collected()
    with progress_bar() as progress:
        task = progress.add_task("bench", total=plan.steps() * len(chosen), note="")
        for ranks in chosen:
            _measure(ranks, plan, collected, progress, task)
    for ranks in chosen:
        print_table(render([row for row in collected.rows if row.nproc == ranks], plan.dtype))
    best = max(flow for flows in collected.flows.values() for flow in flows)
    say(f"raw UDP over loopback: {best / GB:.2f} GB/s a flow, {usable_cores()} cores")
    if json is not None:
        write(json, as_document(plan, chosen, collected))


def _measure(nproc: int, plan: Plan, collected: Collected, progress: Progress, task: TaskID) -> None:
    progress.update(task, note="raw UDP")
    flows = [measure_flow(_FLOW_SECONDS) for _ in range(_FLOW_REPETITIONS)]
    records: list[Block | Verified] = []
    all_done = process_context().Barrier(nproc)
    with LocalRanks(run_rank, nproc, (plan, all_done)) as ranks:
        for record in ranks.messages(_SILENCE_SECONDS):
            records.append(record)
            progress.update(
                task, advance=1, note=f"{nproc} ranks, {format_size(record.size)}, {record.backend}"
            )
    collected.flows[nproc] = flows
    collected.records[nproc] = records
    collected.rows += summarize(nproc, plan.backends, records, max(flows), usable_cores())


def _parse_nproc(text: str) -> int:
    count = parse_count(text, "--nproc", minimum=2)
    if count > _MOST_RANKS:
        raise UsageError(
            f"--nproc: {count} is too many; results can be verified exactly for 2 to {_MOST_RANKS} ranks"
        )
    return count


def _parse_rmem(text: str) -> int:
    size = parse_size(text, "--rmem")
    try:
        Config(receive_buffer_bytes=size)
    except ConfigError as error:
        raise UsageError(f"--rmem: {text!r}: {error}") from error
    return size


def _check_dtype(name: str) -> str:
    if name not in ELEMENT_BYTES:
        raise UsageError(f"--dtype: {name!r} is not supported; choose one of {', '.join(ELEMENT_BYTES)}")
    return name


def _check_sizes(plan: Plan) -> None:
    width = ELEMENT_BYTES[plan.dtype]
    for size in plan.sizes:
        if size % width:
            raise UsageError(
                f"--sizes: {format_size(size)} is not a multiple of the {width} bytes of {plan.dtype}"
            )


def _check_writable(path: Path | None) -> None:
    """Before minutes of measuring, not after."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"--json: {str(path)!r} cannot be written; name a file in an existing folder")
