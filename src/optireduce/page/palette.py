"""One look for each series name, the same in all figures of a page.

The colours are those of Okabe and Ito, which people with any colour vision tell apart, without the yellow
that vanishes on white. When they are used up they come again with other dashes and markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FREE = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Style:
    """How one series is drawn; ``dashes`` and ``marker`` are matplotlib's."""

    colour: str
    dashes: str = _DASHES[0]
    marker: str = _MARKERS[0]


# What is compared most often looks the same on every page; a target is nobody's.
_FIXED = {"gloo": Style("#D55E00"), "optireduce": Style("#0072B2"), "target": Style("#888888", _DASHES[1])}


def styles(names: Iterable[str]) -> Mapping[str, Style]:
    """A style for each name: fixed for the well-known, for others in the order of their first appearance."""
    chosen: dict[str, Style] = {}
    free = 0
    for name in names:
        if name in chosen:
            continue
        if name in _FIXED:
            chosen[name] = _FIXED[name]
            continue
        turn, place = divmod(free, len(_FREE))
        chosen[name] = Style(_FREE[place], _DASHES[turn % len(_DASHES)], _MARKERS[turn % len(_MARKERS)])
        free += 1
    return chosen
