"""The benchmark's result as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..units import format_seconds, format_size
from .plan import ELEMENT_BYTES
from .statistics import GB, Row

_COLUMNS = (
    "size", "count", "type", "redop", "backend", "time p50", "algbw GB/s", "busbw GB/s", "#wrong",
    "p99", "CPU s/GB", "of raw UDP", "drops", "iters",
)  # fmt: skip


def render(rows: Sequence[Row], dtype: str) -> Table:
    """One table for one number of ranks; the first backend is what the others are compared with."""
    first = rows[0].backend
    table = Table(title=f"{rows[0].nproc} ranks, loopback", title_justify="left", pad_edge=False)
    for name in (*_COLUMNS[:10], f"times {first} \\[worst-best]", *_COLUMNS[10:]):
        table.add_column(
            name, justify="left" if name in ("type", "redop", "backend") else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*_cells(row, dtype, first), end_section=row.backend == rows[-1].backend)
    return table


def _cells(row: Row, dtype: str, first: str) -> tuple[str, ...]:
    ratio = "1" if row.backend == first else _ratio(row)
    return (
        format_size(row.size),
        str(row.size // ELEMENT_BYTES[dtype]),
        dtype,
        "sum",
        row.backend,
        format_seconds(row.p50),
        f"{row.algbw / GB:.3f}",
        f"{row.busbw / GB:.3f}",
        _red_unless_zero(row.wrong),
        format_seconds(row.p99),
        ratio,
        f"{row.cpu_seconds_per_gb:.3g}",
        f"{row.limit_share:.0%}",
        "-" if row.socket_drops is None else _red_unless_zero(row.socket_drops),
        str(row.iterations),
    )


def _ratio(row: Row) -> str:
    colour = "green" if row.ratio.lowest > 1 else "red" if row.ratio.highest < 1 else "default"
    return f"[{colour}]{row.ratio.median:.2f}[/] \\[{row.ratio.lowest:.2f}-{row.ratio.highest:.2f}]"


def _red_unless_zero(count: int) -> str:
    return f"[red]{count}[/]" if count else "0"
