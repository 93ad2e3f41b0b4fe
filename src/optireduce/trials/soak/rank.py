"""One rank of a chapter of all-reduces, a process on its own host: ``python -m optireduce.trials.soak.rank
'<json of Seat>'``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import Communicator
from ...report import Report
from ..stream import ElasticCommunicator, Stream
from ..voice import Voice
from .loop import config_of, soak
from .plan import Seat
from .values import PERIOD, Floats, Ledger, contribution

_PORT = 29_600  # free: every host is a new namespace
_COMPUTE_ROUNDS = 4


class AllReduces:
    """Some work and an all-reduce with a deadline, again and again."""

    def __init__(self, seat: Seat, group: Communicator) -> None:
        self._group, self._stream = group, Stream(group)
        self._elements = seat.size // 4 - 1  # and the value that says whose time is over
        self._given = [contribution(self._elements, step) for step in range(PERIOD)]
        self._bucket = np.empty(self._elements + 1, np.float32)
        self._ballast = np.ones(100_000, dtype=np.float32)
        self._report: Report | None = None
        self.ledger = Ledger(self._elements, len(seat.addresses))

    def prepare(self, over: bool) -> None:
        """Compute a little, and fill the bucket."""
        for _ in range(_COMPUTE_ROUNDS):
            np.tanh(self._ballast, out=self._ballast)
        np.copyto(self._bucket[:-1], self._given[self._stream.step % PERIOD])
        self._bucket[-1] = over

    def reduce(self) -> tuple[Report, Floats]:
        """One all-reduce."""
        self.ledger.expect(self._stream.step)
        self._report = self._stream.average(self._bucket)
        self.ledger.add(self._bucket[:-1])
        return self._report, self._bucket

    def finish(self) -> float:
        """What no decision has included, of all members, in one exact operation."""
        assert self._report is not None
        left = np.zeros(self._elements + 1, np.float32)
        residual = self._stream.take_residual()
        left[: residual.size] = residual
        self._group.all_reduce(left, "sum")
        self.ledger.add(left[:-1] / np.float32(len(self._report.members)))
        return self.ledger.deviation()

    def stats(self) -> Mapping[str, Any]:
        """Of the group."""
        return self._group.stats()


def main() -> None:
    """Join, reduce, leave."""
    seat = Seat.from_json(sys.argv[1])
    voice = Voice()
    store = f"{seat.addresses[0]}:{_PORT}"
    with ElasticCommunicator(seat.rank, len(seat.addresses), store=store, config=config_of(seat)) as group:
        work = AllReduces(seat, group)
        voice.tell("ready")
        soak(seat, voice, work)
    voice.tell("done")


if __name__ == "__main__":
    main()
