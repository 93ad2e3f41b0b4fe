"""Reading what the user typed (sizes, lists) and writing numbers back in the same units. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from .errors import UsageError

T = TypeVar("T")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: str, option: str) -> int:
    """Bytes in `64K`, `25M`, `1.5G` or `4096`. Units are powers of 1024, as in nccl-tests."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if size < 1 or size != int(size):
        raise UsageError(
            f"{option}: {text!r} is not a size; write a whole number of bytes such as 4096, 64K or 25M"
        )
    return int(size)


def parse_count(text: str, option: str, minimum: int) -> int:
    """A whole number that is at least `minimum`."""
    if not text.strip().isdecimal() or int(text) < minimum:
        raise UsageError(f"{option}: {text!r} is not valid; write a whole number of at least {minimum}")
    return int(text)


def parse_list(text: str, option: str, parse_one: Callable[[str], T]) -> tuple[T, ...]:
    """The items of a comma-separated list, in the user's order. Empty lists and repetitions are mistakes."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise UsageError(f"{option}: {text!r} has an empty item; write a comma-separated list such as a,b,c")
    items = tuple(parse_one(part) for part in parts)
    repeated = _first_repeated(items)
    if repeated is not None:
        raise UsageError(f"{option}: {text!r} names {parts[repeated]!r} twice; name each once")
    return items


def _first_repeated(items: Iterable[object]) -> int | None:
    seen: list[object] = []
    for index, item in enumerate(items):
        if item in seen:
            return index
        seen.append(item)
    return None


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling: 65536 is `64K`, 1000 stays `1000`."""
    for unit in ("G", "M", "K"):
        if size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}"
    return str(size_bytes)


def format_seconds(seconds: float) -> str:
    """Three significant digits in the unit that suits: `62.1 us`, `4.35 ms`, `1.20 s`."""
    for scale, unit in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 999.5 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
