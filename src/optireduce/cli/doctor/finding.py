"""What the doctor says: one line for each thing examined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rich.markup import escape
from rich.table import Table


class Verdict(Enum):
    """How bad it is."""

    OK = "ok"
    SLOW = "slow"
    BROKEN = "broken"


_COLOURS = {Verdict.OK: "green", Verdict.SLOW: "yellow", Verdict.BROKEN: "red"}


@dataclass(frozen=True)
class Finding:
    """One thing examined."""

    what: str
    found: str
    verdict: Verdict
    advice: str = ""  # what it costs and how to fix it


def render(findings: Iterable[Finding]) -> Table:
    """All findings as a table."""
    table = Table(pad_edge=False)
    for name in ("what", "found", "verdict", "what it costs, how to fix it"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.verdict]
        verdict = f"[{colour}]{finding.verdict.value}[/]"
        table.add_row(escape(finding.what), escape(finding.found), verdict, escape(finding.advice))
    return table
