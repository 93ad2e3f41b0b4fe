"""One rank, a process on its own host: ``python -m optireduce.trials.soak.rank '<json of Seat>'``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from ... import Communicator, Config
from ...errors import OptiReduceError
from ..voice import Voice
from .plan import Seat
from .values import contribution, wrong_values

_PORT = 29_600  # free: every host is a new namespace
_TELL_SECONDS = 0.5
_CHECK_EVERY = 5  # operations: checking a value takes longer than reducing it
_COMPUTE_ROUNDS = 4
_OPERATION_SECONDS = 20.0
_LEAST_RANKS = 2  # a busy machine may keep two of four hosts standing still at once


def soak(seat: Seat, voice: Voice, group: Communicator) -> None:
    """Steps of some work and an all-reduce until the time is over, or the group is."""
    ranks = len(seat.addresses)
    mine = [contribution(seat.rank, seat.size // 4, operation) for operation in range(7)]  # it repeats
    bucket, work = np.empty_like(mine[0]), np.ones(100_000, dtype=np.float32)
    tally = {"operations": 0, "bytes": 0, "lost_bytes": 0, "checked": 0, "wrong": 0}
    times: list[tuple[float, float]] = []
    voice.gate()
    began = told = time.monotonic()
    while time.monotonic() - began < seat.seconds:
        for _ in range(_COMPUTE_ROUNDS):
            np.tanh(work, out=work)
        np.copyto(bucket, mine[tally["operations"] % 7])
        begin = time.monotonic()
        try:
            report = group.all_reduce(bucket, "mean")
        except OptiReduceError as error:
            voice.tell("ended", error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began)
            break
        times.append((begin, time.monotonic() - begin))
        tally["operations"] += 1
        tally["bytes"] += report.bytes
        tally["lost_bytes"] += report.lost_bytes
        if tally["operations"] % _CHECK_EVERY == 0:
            tally["checked"] += 1
            tally["wrong"] += wrong_values(bucket, ranks, report)
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            voice.tell("progress", resident=resident_bytes(), times=times, **tally)
            times = []
    voice.tell("progress", resident=resident_bytes(), times=times, **tally)
    stats = group.stats()
    voice.tell("tally", disbelieved=stats["forged_packets"] + stats["invalid_packets"], **tally)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Join, reduce, leave."""
    seat = Seat.from_json(sys.argv[1])
    voice = Voice()
    config = Config(
        interface=seat.interface,
        bounded=True,
        bounded_min_bytes=0,
        min_ranks=_LEAST_RANKS,
        timeout_seconds=_OPERATION_SECONDS,
    )
    store = f"{seat.addresses[0]}:{_PORT}"
    with Communicator(seat.rank, len(seat.addresses), store=store, config=config) as group:
        voice.tell("ready")
        soak(seat, voice, group)
    voice.tell("done")


if __name__ == "__main__":
    main()
