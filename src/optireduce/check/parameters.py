"""The check of one session, in its forward pre-hook. Nothing waits for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .compare import Look, ParameterDifference, sides_of
from .slices import ParameterSlices

if TYPE_CHECKING:
    from .._core import Engine
    from ..snapshot.mend import Mender
    from ..snapshot.requests import Peers
    from .shelf import Shelf

_JOIN_SECONDS = 5.0

_logger = logging.getLogger("optireduce")


class ParameterCheck:
    """Hashes a slice of the parameters before each step, and hears what the others found."""

    def __init__(
        self,
        engine: Engine,
        *,
        is_on: bool,
        max_lag: int,
        shelf: Shelf,
        peers: Peers,
        mender: Mender | None = None,
    ) -> None:
        self._engine = engine
        self._is_on = is_on
        # Later than any rank finds a difference: what is not settled after max_lag + 2 steps is judged then.
        self._look_after = max_lag + 3
        self._shelf = shelf
        self._peers = peers
        self._mender = mender
        self._slices: ParameterSlices | None = None
        self._last_step = -1
        self._differing: dict[int, tuple[tuple[int, ...], ...]] = {}  # sides by slice
        self._told: set[int] = set()  # ranks that were named, until all agree again
        self._next: Look | None = None
        self._looked_at = -1  # the step of the newest look; what is said before is no news
        self._last: Look | None = None  # that was told
        self._checks = 0
        self._differences = 0

    @property
    def difference(self) -> ParameterDifference | None:
        """The newest one that was told."""
        return None if self._last is None else self._last.difference

    def stats(self) -> dict[str, int]:
        """Steps in which ranks were compared, and in which they were not equal."""
        return {
            "parameter_checks": self._checks,
            "parameter_differences": self._differences,
            "mended_differences": 0 if self._mender is None else self._mender.mended,
        }

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
        if self._next is not None and self._next.at <= step:
            look, self._next = self._next, None
            self._look(look, slices, model, step)

    def close(self) -> None:
        """Tell what has not been told."""
        self._is_on = False
        if self._last is not None:
            self._last.end(_JOIN_SECONDS)
        if self._next is not None and not self._next.is_told:
            self._last = self._next
            self._last.end(_JOIN_SECONDS)

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
        if step > self._looked_at:
            self._plan_look(ParameterDifference(step, sides), index)

    def _plan_look(self, difference: ParameterDifference, index: int) -> None:
        # Without a majority it may be the one that was told, seen with fewer hashes.
        is_new = bool(set(difference.ranks) - self._told) or not self._told
        mends = self._mender is not None and bool(difference.ranks)
        if not is_new and not mends:
            return
        self._told |= set(difference.ranks or difference.sides[-1])
        self._looked_at = difference.step + self._look_after
        self._next = Look(difference, index, self._looked_at, is_told=not is_new)
        if self._mender is not None and mends:
            self._mender.offer(difference.ranks, self._looked_at, difference.sides[0])

    def _look(self, look: Look, slices: ParameterSlices, model: Any, step: int) -> None:
        values = slices.copy(look.index) if self._peers.doors else None
        if not look.is_told:
            self._last = look
            if values is not None:
                self._shelf.put(look.at, look.index, values)
                look.begin(self._peers, slices.pieces(look.index), values)
            else:
                look.tell()
        difference = look.difference
        if self._mender is not None and self._peers.rank in difference.ranks and look.at == step:
            self._mender.take_over(model, step, difference.sides[0])
