"""The check of one session, in its forward pre-hook. Nothing waits for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .compare import Look, ParameterDifference, sides_of
from .slices import ParameterSlices

if TYPE_CHECKING:
    from .._core import Engine
    from ..snapshot.requests import Peers
    from .shelf import Shelf

_JOIN_SECONDS = 5.0

_logger = logging.getLogger("optireduce")


class ParameterCheck:
    """Hashes a slice of the parameters before each step, and hears what the others found."""

    def __init__(self, engine: Engine, *, is_on: bool, max_lag: int, shelf: Shelf, peers: Peers) -> None:
        self._engine = engine
        self._is_on = is_on
        # Later than any rank finds a difference: what is not settled after max_lag + 2 steps is judged then.
        self._look_after = max_lag + 3
        self._shelf = shelf
        self._peers = peers
        self._slices: ParameterSlices | None = None
        self._last_step = -1
        self._differing: dict[int, tuple[tuple[int, ...], ...]] = {}  # sides by slice
        self._told: set[int] = set()  # ranks that were named, until all agree again
        self._looks: list[Look] = []
        self._last: Look | None = None
        self._checks = 0
        self._differences = 0

    @property
    def difference(self) -> ParameterDifference | None:
        """The newest one that was told."""
        return None if self._last is None else self._last.difference

    def stats(self) -> dict[str, int]:
        """Steps in which ranks were compared, and in which they were not equal."""
        return {"parameter_checks": self._checks, "parameter_differences": self._differences}

    def before_forward(self, model: Any, step: int) -> None:
        """The parameters are those that all ranks have before this step."""
        if not self._is_on or step == self._last_step:
            return
        self._last_step = step
        slices = self._slices or ParameterSlices(model)
        found = slices.fingerprint(slices.index(step))
        if found is None:  # they were replaced, on all ranks alike
            slices = ParameterSlices(model)
            found = slices.fingerprint(slices.index(step)) or 0
        self._slices = slices
        for settled in self._engine.check(step, found):
            self._judge(slices, *settled)
        self._look(slices, step)

    def close(self) -> None:
        """Tell what has not been told."""
        self._is_on = False
        if self._last is not None:
            self._last.end(_JOIN_SECONDS)
        for look in self._looks:
            self._last = look
            look.end(_JOIN_SECONDS)

    def _judge(self, slices: ParameterSlices, step: int, hashes: list[tuple[int, int]]) -> None:
        if len(hashes) < 2:  # nobody was heard
            return
        self._checks += 1
        index, sides = slices.index(step), sides_of(hashes)
        if len(sides) == 1:
            if self._differing.pop(index, None) is not None and not self._differing:
                _logger.warning("the parameters of all ranks are equal again (step %d)", step)
                self._told.clear()
            return
        self._differences += 1
        self._differing[index] = sides
        difference = ParameterDifference(step, sides)
        # Without a majority it may be the one that was told, seen with fewer hashes.
        if set(difference.ranks) - self._told or not self._told:
            self._told |= set(difference.ranks or sides[-1])
            self._looks.append(Look(difference, index, step + self._look_after))

    def _look(self, slices: ParameterSlices, step: int) -> None:
        for look in [each for each in self._looks if each.at <= step]:
            self._looks.remove(look)
            self._last = look
            values = slices.copy(look.index) if self._peers.doors else None
            if values is None:
                look.end(0.0)
            else:
                self._shelf.put(look.at, look.index, values)
                look.begin(self._peers, slices.pieces(look.index), values)
