"""What the ranks' hashes say, and how large a difference is.

All ranks hear the same hashes, so all of them find the same difference. At the same later step each puts its
values of that slice on its shelf, and fetches those of a rank on the other side.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..snapshot.channel import ChannelError
from ..snapshot.requests import Peers, Refused
from .slices import Piece

_FETCH_SECONDS = 30.0  # the other rank may be a few steps behind
_SHOWN_NAMES = 4

_logger = logging.getLogger("optireduce")


@dataclass(frozen=True)
class ParameterDifference:
    """Parameters of ranks that should be equal, and are not."""

    step: int
    """The step before which it was found."""
    sides: tuple[tuple[int, ...], ...]
    """Ranks with equal parameters, the largest side first."""
    parameters: tuple[str, ...] = ()
    """In which values differ, as far as they were looked at; (): they could not be fetched."""
    values: int = 0
    """How many differ."""
    looked_at: int = 0
    """Of so many."""
    largest: float = 0.0
    """The largest absolute difference."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that differ from more than half of the ranks; (): no side has so many."""
        if 2 * len(self.sides[0]) <= sum(map(len, self.sides)):
            return ()
        return tuple(sorted(rank for side in self.sides[1:] for rank in side))

    def partner_of(self, rank: int) -> int:
        """A rank whose values are others than this one's."""
        mine = next((side for side in self.sides if rank in side), self.sides[-1])
        return next(side for side in self.sides if side is not mine)[0]

    def __str__(self) -> str:
        majority, *others = (_named(side) for side in self.sides)
        if self.ranks:
            text = f"the parameters of {_named(self.ranks)} differ from those of {majority}"
        else:
            text = f"the parameters of {' and of '.join([majority, *others])} differ"
        text += f" (found before step {self.step})"
        if not self.parameters:
            return text
        shown = ", ".join(self.parameters[:_SHOWN_NAMES])
        more = len(self.parameters) - _SHOWN_NAMES
        shown += f" and {more} more" if more > 0 else ""
        count = f"{self.values} of {self.looked_at} values"
        return f"{text}: {count} differ, by {self.largest:g} at most, in {shown}"


def sides_of(hashes: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Ranks with the same hash, the largest side first, of equals the one with the lowest rank."""
    by_hash: dict[int, list[int]] = {}
    for rank, found in hashes:
        by_hash.setdefault(found, []).append(rank)
    return tuple(sorted((tuple(side) for side in by_hash.values()), key=lambda side: (-len(side), side)))


def measured(
    difference: ParameterDifference, pieces: Sequence[Piece], ours: torch.Tensor, theirs: torch.Tensor
) -> ParameterDifference:
    """The same with what the values of both sides say."""
    names, count, looked_at, largest, begin = [], 0, 0, 0.0, 0
    for piece in pieces:
        here, there = (each[begin : begin + piece.bytes].clone() for each in (ours, theirs))
        begin += piece.bytes
        differs = (here != there).view(-1, piece.dtype.itemsize).any(dim=1)
        looked_at += differs.numel()
        if not differs.any():
            continue
        names.append(piece.name)
        count += int(differs.sum())
        wide = torch.complex128 if piece.dtype.is_complex else torch.float64
        gap = (here.view(piece.dtype)[differs].to(wide) - there.view(piece.dtype)[differs].to(wide)).abs()
        largest = max(largest, float(gap.nan_to_num(float("inf"), float("inf")).max()))
    return ParameterDifference(difference.step, difference.sides, tuple(names), count, looked_at, largest)


class Look:
    """One difference, from when it was found until it is told."""

    def __init__(self, difference: ParameterDifference, index: int, at: int, is_told: bool = False) -> None:
        self.difference = difference
        self.index = index
        self.at = at
        """The step before which the values are put on the shelf; the same on all ranks."""
        self._thread: threading.Thread | None = None
        self.is_told = is_told

    def begin(self, peers: Peers, pieces: Sequence[Piece], ours: torch.Tensor) -> None:
        """Fetch the other side's values, and tell; in a thread, because nothing waits for it."""
        self._thread = threading.Thread(
            target=self._run, args=(peers, pieces, ours), name="optireduce-check", daemon=True
        )
        self._thread.start()

    def end(self, timeout_seconds: float) -> None:
        """Tell what is known, if that has not been done."""
        if self._thread is None:
            self.tell()
        else:
            self._thread.join(timeout_seconds)

    def tell(self) -> None:
        """Once."""
        if not self.is_told:
            self.is_told = True
            _logger.warning("%s", self.difference)

    def _run(self, peers: Peers, pieces: Sequence[Piece], ours: torch.Tensor) -> None:
        try:
            theirs = self._fetch(peers, ours.numel())
            if theirs is not None and not torch.equal(ours, theirs):
                self.difference = measured(self.difference, pieces, ours, theirs)
        finally:
            self.tell()

    def _fetch(self, peers: Peers, size: int) -> torch.Tensor | None:
        partner = self.difference.partner_of(peers.rank)
        order = {"ask": "values", "step": self.at, "slice": self.index, "bytes": size}
        body = bytearray(size)
        deadline = time.monotonic() + _FETCH_SECONDS
        while partner in peers.doors and time.monotonic() < deadline:
            try:
                if not peers.ask(partner, order, memoryview(body)).get("gone"):
                    return torch.frombuffer(body, dtype=torch.uint8)
            except (OSError, ChannelError, Refused, KeyError, TypeError, ValueError):
                return None
        return None


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
