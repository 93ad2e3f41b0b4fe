"""`optireduce lab environments`: what can happen to a network."""

from __future__ import annotations

from rich.table import Table

from ...lab import ENVIRONMENTS
from ..console import print_table


def environments() -> None:
    """List the named environments."""
    table = Table(pad_edge=False)
    for name in ("environment", "what happens there"):
        table.add_column(name, no_wrap=True)
    for environment in ENVIRONMENTS.values():
        table.add_row(environment.name, environment.summary)
    print_table(table)
