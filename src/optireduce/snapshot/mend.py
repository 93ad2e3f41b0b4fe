"""A member whose parameters are not those of most takes over the others' training state.

It is at the same place as its donors, and stays a member: all of them capture their state at a step on which
they agreed without a message, because all know of the difference. Where anything is wrong nothing is applied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ..errors import LeftBehind, MismatchError
from .donor import Donor, Wanted
from .requests import Peers
from .returner import Again, Returner, Snapshot

if TYPE_CHECKING:
    import torch

    from ..transport import Transport
    from .state import TrainingState

_logger = logging.getLogger("optireduce")


class _AtOneStep(Returner):
    """A snapshot of donors that capture without being asked."""

    def fetch_at(self, step: int, donors: Sequence[int]) -> Snapshot:
        """Of exactly this step. Again or LeftBehind: there is none."""
        self._donors = sorted(donors)
        with ThreadPoolExecutor(len(donors), "optireduce-mend") as pool:
            try:
                captured = partial(self._captured, order={"ask": "ready", "step": step})
                answers = dict(zip(self._donors, pool.map(captured, self._donors), strict=True))
                return self._fetched(self._majority(answers), self._donors, pool.map)
            finally:
                self._stopped = True


class Mender:
    """Of one session. ``state``: of a model and what trains it; ``obstacle``: why there is none."""

    def __init__(
        self,
        transport: Transport,
        peers: Peers,
        donor: Donor,
        state: Callable[[torch.nn.Module], TrainingState],
        obstacle: Callable[[], str],
    ) -> None:
        self._transport = transport
        self._peers = peers
        self._donor = donor
        self._state = state
        self._obstacle = obstacle
        self.mended = 0

    def offer(self, ranks: Sequence[int], step: int, donors: Sequence[int]) -> None:
        """Capture this rank's part of the state before that step, for these ranks."""
        if self._obstacle() or self._peers.rank not in donors:
            return
        part = sorted(donors).index(self._peers.rank)
        for rank in ranks:
            self._donor.ask(rank, Wanted(step, part, len(donors), False))

    def take_over(self, model: torch.nn.Module, step: int, donors: Sequence[int]) -> None:
        """Make this rank's state theirs, or leave it as it is and say why."""
        rank = self._peers.rank
        if obstacle := self._obstacle():
            _logger.warning("rank %d keeps its parameters, which differ%s", rank, obstacle)
            return
        began = time.monotonic()
        returner = _AtOneStep(self._peers, self._transport.timeout_seconds, pause=False)
        try:
            found = returner.fetch_at(step, donors)
            here = self._transport.engine.position()
            if here != (found.completed, found.digest):
                raise MismatchError(f"the donors are at operation {found.completed}, this rank at {here[0]}")
            state = self._state(model)
            state.apply(found.shared, state.buffers())  # its buffers are its own
        except (Again, LeftBehind, MismatchError, RuntimeError) as error:
            _logger.warning("rank %d keeps its parameters, which differ: %s", rank, error)
            return
        finally:
            returner.release()
        self.mended += 1
        _logger.warning(
            "rank %d took over the state of rank %s before step %d (%.1f MB in %.2f s)",
            rank,
            ", ".join(map(str, donors)),
            step,
            found.shared.size / 1e6,
            time.monotonic() - began,
        )
