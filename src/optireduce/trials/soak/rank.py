"""One rank of a chapter of all-reduces, a process on its own host: ``python -m optireduce.trials.soak.rank
'<json of Seat>'``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import Communicator
from ...report import Report
from ..voice import Voice
from .loop import config_of, soak
from .plan import Seat
from .values import PERIOD, contribution, whose, wrong_values

_PORT = 29_600  # free: every host is a new namespace
_COMPUTE_ROUNDS = 4


class AllReduces:
    """Some work and an all-reduce, again and again."""

    def __init__(self, seat: Seat, group: Communicator) -> None:
        self._group, self._ranks = group, len(seat.addresses)
        elements = seat.size // 4
        self._mine = [contribution(seat.rank, elements, operation) for operation in range(PERIOD)]
        self._bucket, self._ballast = np.empty_like(self._mine[0]), np.ones(100_000, dtype=np.float32)
        self._operations = 0
        self._report: Report | None = None

    def prepare(self) -> None:
        """Compute a little, and fill the bucket."""
        for _ in range(_COMPUTE_ROUNDS):
            np.tanh(self._ballast, out=self._ballast)
        np.copyto(self._bucket, self._mine[self._operations % PERIOD])

    def reduce(self) -> Report:
        """One all-reduce."""
        self._report = self._group.all_reduce(self._bucket, "mean")
        self._operations += 1
        return self._report

    def wrong_values(self) -> int:
        """In the bucket."""
        assert self._report is not None
        return wrong_values(self._bucket, self._ranks, self._report)

    def whose_values(self) -> str:
        """In the bucket."""
        assert self._report is not None
        return whose(self._bucket, self._ranks, self._report)

    def stats(self) -> Mapping[str, Any]:
        """Of the group."""
        return self._group.stats()


def main() -> None:
    """Join, reduce, leave."""
    seat = Seat.from_json(sys.argv[1])
    voice = Voice()
    store = f"{seat.addresses[0]}:{_PORT}"
    with Communicator(seat.rank, len(seat.addresses), store=store, config=config_of(seat)) as group:
        work = AllReduces(seat, group)
        voice.tell("ready")
        soak(seat, voice, work)
    voice.tell("done")


if __name__ == "__main__":
    main()
