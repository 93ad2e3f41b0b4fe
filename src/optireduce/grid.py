"""Who stands in which row of a grid. Every rank decides by itself, from what all ranks know, and alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from .errors import ConfigError

FLAT_BELOW = 128
"""Ranks, on as many hosts, that "auto" leaves flat. The study grid-scale says why."""


def rows_for(groups: int | Literal["auto"], addresses: Sequence[str]) -> list[list[int]]:
    """The ranks of every row; none where all ranks exchange with all others. ``addresses``: each rank's."""
    size = len(addresses)
    if groups == "auto":
        return _host_rows(addresses) or (_square_rows(size) if size >= FLAT_BELOW else [])
    if groups == 1:
        return []
    if size % groups != 0 or groups == size:
        fitting = [rows for rows in _divisors(size) if rows != size]
        raise ConfigError(
            f"groups = {groups!r} is not usable for {size} ranks: it must be one of "
            f"{', '.join(map(str, fitting)) or 1}, so that all rows have equally many ranks, at least two"
        )
    return _blocks(size, groups)


def _host_rows(addresses: Sequence[str]) -> list[list[int]]:
    """Hosts, where all have equally many ranks and several: flat, each of them would send the bucket through
    its host's link, in a grid all of them together do. None elsewhere."""
    hosts: dict[str, list[int]] = {}
    for rank, address in enumerate(addresses):
        hosts.setdefault(address, []).append(rank)
    lengths = {len(ranks) for ranks in hosts.values()}
    equal = len(hosts) > 1 and len(lengths) == 1 and lengths != {1}
    return list(hosts.values()) if equal else []


def _square_rows(size: int) -> list[list[int]]:
    """About as many rows as ranks in each."""
    between = [rows for rows in _divisors(size) if rows not in (1, size)]
    if not between:
        return []  # a prime number of ranks has no rows
    return _blocks(size, min(between, key=lambda rows: abs(math.log(rows * rows / size))))


def _blocks(size: int, groups: int) -> list[list[int]]:
    """Neighbours stand in the same row: launchers number the ranks of a host one after the other."""
    length = size // groups
    return [list(range(row * length, (row + 1) * length)) for row in range(groups)]


def _divisors(size: int) -> list[int]:
    return [divisor for divisor in range(1, size + 1) if size % divisor == 0]
