"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

NOTHING = "-"  # in a cell where nothing is known


def seconds(value: float) -> str:
    """Three digits in the unit that suits: `62.1 us`, `4.35 ms`, `120 s`."""
    if value == 0:
        return "0 s"
    for scale, unit in ((1e-6, "us"), (1e-3, "ms")):
        if abs(value) < 999.5 * scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value)} s"


def share(value: float) -> str:
    """As percent; a small share must not look like none."""
    return "0 %" if value == 0 else f"{value:.2%}".replace("%", " %") if value >= 5e-5 else "< 0.01 %"


def size(value: int) -> str:
    """Bytes in the unit that suits; units are powers of 1000."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value} B"


def ranks(numbers: Iterable[int]) -> str:
    """`0, 1, 5`, or `none`."""
    return ", ".join(map(str, sorted(numbers))) or "none"


def _three_digits(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
