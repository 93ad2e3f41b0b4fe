"""Results for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ...trials.allreduce.comparison import Figures
from ...trials.allreduce.faults import Aftermath, Incident
from ...trials.cpu import CpuUse
from ..console import print_table, say
from ..units import format_seconds

_COLUMNS = (
    "system", "ops", "p50", "p90", "p99", "max", "p99/p50", "missing mean", "missing max", "wire MB", "CPU s",
    "requests", "resent MB", "#wrong", "unequal", "p50/limit", "p50/gloo", "p99/gloo",
    "disturbed", "calm p99/p50", "calm missing", "closed by",
)  # fmt: skip


def show_comparison(
    title: str, rows: Sequence[Figures], limit: float | None, switch_drops: int | None
) -> None:
    """One row for each system; ratios to the line-rate limit and to Gloo."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("system", "closed by") else "right", no_wrap=True)
    gloo = next((row for row in rows if row.system == "gloo"), None)
    for row in rows:
        table.add_row(*_cells(row, gloo, limit))
    print_table(table)
    say("missing: contributions that missed the deadline: carried into the next operation, lost with papers")
    say("#wrong: values, where nothing was missing; unequal: operations with other bits on some rank")
    if limit is not None:
        say("wire MB: frames that one host sent for one operation; CPU s: of all ranks for one operation")
        say("disturbed: the hypervisor gave 20 ms or more of our cores to others; calm: without these")
        say(f"line-rate limit, headers included: {format_seconds(limit)}")
    if switch_drops is not None:
        say(f"packets that the switch dropped, of all senders: {switch_drops}")


def show_cpu(cpu: CpuUse | None) -> None:
    """Gloo hands over between threads many times an operation: it suffers most from a busy machine."""
    if cpu is not None:
        say(f"cores in use: ranks {cpu.ranks:.2f}, everything else {cpu.others:.2f}, of {cpu.cores}")


def _cells(row: Figures, gloo: Figures | None, limit: float | None) -> tuple[str, ...]:
    return (
        row.system,
        str(row.operations),
        format_seconds(row.p50),
        format_seconds(row.p90),
        format_seconds(row.p99),
        format_seconds(row.most),
        f"{row.tail:.2f}",
        f"{row.missing_mean:.3%}",
        f"{row.missing_most:.2%}",
        f"{row.sent_bytes / 1e6:.2f}",
        f"{row.cpu_seconds:.3f}",
        f"{row.requests:.0f}",
        f"{row.resent_bytes / 1e6:.1f}",
        f"[red]{row.wrong}[/]" if row.wrong else "0",
        str(row.unequal),
        "-" if limit is None else f"{row.p50 / limit:.3f}",
        "-" if gloo is None else f"{row.p50 / gloo.p50:.2f}",
        "-" if gloo is None else f"{row.p99 / gloo.p99:.2f}",
        str(row.disturbed),
        f"{row.calm_tail:.2f}",
        f"{row.calm_missing_mean:.3%}",
        ", ".join(f"{reason} {count}" for reason, count in sorted(row.closed_by.items())) or "-",
    )


def show_incident(what: str, incident: Incident, found: Aftermath) -> None:
    """What the others noticed of a rank that was stopped or killed."""
    say(f"rank {incident.victim}: {what}")
    say(f"usual step:                      {format_seconds(found.usual_step)}")
    say(f"longest step of the others then: {format_seconds(found.longest_step)}")
    say(f"steps of the others from then:   {found.steps_of_others}, missing {found.missing_mean:.2%}")
    say(f"members at the end:              {', '.join(map(str, found.members))}")
    if incident.resumed_at is not None:
        say(f"in step again after SIGCONT:     {_catch_up(found)}")
    for rank, failure in sorted(incident.failures.items()):
        colour = "yellow" if rank == incident.victim else "red"
        say(f"[{colour}]rank {rank} failed[/] in step {failure['step']}: {failure['error']}")


def _catch_up(found: Aftermath) -> str:
    if found.in_step_after is None:
        return "never"
    return f"{found.in_step_after} steps of the others later, having made {found.made_up} itself"
