"""Results for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..cli.console import print_table
from .figures import Cell, Difference, Row

_COLUMNS = (
    "task", "pattern", "loss", "hopeless", "strategy", "seeds", "final loss", "minus exact", "accuracy",
    "replicas", "apart at the end", "really lost",
)  # fmt: skip
_TEXTS = ("task", "pattern", "hopeless", "strategy", "replicas")


def show_comparison(rows: Sequence[Row]) -> None:
    """One row for each strategy under each kind of loss."""
    table = _table("Final loss, mean of 8 replicas; differences to the exact run of the same seed", _COLUMNS)
    for row in rows:
        table.add_row(
            *_place(row.cell),
            str(row.seeds),
            f"{row.final_loss:.4f}",
            _difference(row.difference),
            "-" if row.score is None else f"{row.score:.2%}",
            "equal" if row.equal else "different",
            f"{row.apart:.1e}",
            f"{row.lost_share:.2%}",
        )
    print_table(table)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=True)
    return table


def _place(cell: Cell) -> tuple[str, ...]:
    loss = cell.loss
    lost = ("-", "-", "-") if loss is None else (loss.pattern, f"{loss.share:.1%}", loss.hopeless)
    return cell.task, *lost, cell.strategy


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    error = "" if difference.error is None else f" ± {difference.error:.4f}"
    return f"{difference.mean:+.4f}{error}"
