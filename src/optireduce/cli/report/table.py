"""A page's table in the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ...page.parts import Rows


def render(rows: Rows) -> Table:
    """The first column says what the others are numbers of."""
    table = Table(title=escape(rows.title), title_justify="left", pad_edge=False)
    for index, name in enumerate(rows.header):
        table.add_column(escape(name), justify="right" if index else "left", overflow="fold")
    for row in rows.rows:
        table.add_row(*map(escape, row))
    return table
