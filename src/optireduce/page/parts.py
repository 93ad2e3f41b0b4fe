"""What stands on a page beside figures: verdicts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """One claim of the papers and what was found here."""

    claim: str
    paper: str
    ours: str
    holds: bool
    note: str = ""  # where it does not hold, or compares other things: why


@dataclass(frozen=True)
class Rows:
    """A table for the terminal and the page; cells are ready to print."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
