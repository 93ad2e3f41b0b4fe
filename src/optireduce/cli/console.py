"""Where output goes: results on stdout, so that they can be piped; progress on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# As wide as the widest table: rich would otherwise cut columns when stdout is a file or a narrow terminal.
_TABLE_WIDTH = 250


def print_table(table: Table) -> None:
    """Print a table whole, whatever the width of the terminal."""
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)


def say(text: str) -> None:
    """Print one line of result."""
    Console(soft_wrap=True, highlight=False).print(text)


def progress_bar(*, redraws_itself: bool = True) -> Progress:
    """A bar with a count, the elapsed time and a free `note` field. One that does not redraw itself has no
    thread, which could delay what it measures: update it with `refresh=True`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        auto_refresh=redraws_itself,
        console=Console(stderr=True),
    )
