"""One rank, a process on its own host: ``python -m optireduce.trials.allreduce.rank '<json of Seat>'``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ...errors import OptiReduceError
from ..cpu import stolen_seconds
from ..stream import Bucket
from ..voice import Voice
from .plan import Seat, System
from .systems import Averager, join

_INT8_STEPS = 4 / 127  # two roundings, each of less than a step, of contributions up to twice the mean
_COMPUTE_ROUNDS = 10  # of a step's own work in a run with faults: some milliseconds


class Cost:
    """What this rank spends from construction to :meth:`read`."""

    def __init__(self, interface: str) -> None:
        self._counter = Path(f"/sys/class/net/{interface}/statistics/tx_bytes")
        self._sent, self._cpu = self._sent_bytes(), time.process_time()

    def read(self) -> dict[str, Any]:
        """Bytes of frames that left the host, and processor time."""
        return {
            "sent_bytes": self._sent_bytes() - self._sent,
            "cpu_seconds": time.process_time() - self._cpu,
        }

    def _sent_bytes(self) -> int:
        return int(self._counter.read_text())


def measure(seat: Seat, voice: Voice, groups: list[Averager]) -> None:
    """Blocks of operations of each system in turn."""
    plan = seat.plan
    bucket = np.empty(plan.size // 4, dtype=np.float32)
    for system, group in zip(plan.systems, groups, strict=True):
        for _ in range(plan.warmup_of(system)):
            _timed(seat, voice, system, group, bucket)
        voice.tell("warm", system=system.name)
    before, cpu_before = [group.counters() for group in groups], time.process_time()
    for round_index in range(plan.rounds()):
        for system, group in zip(plan.systems, groups, strict=True):
            count = plan.operations_in(round_index)
            cost = Cost(seat.interface)
            operations = [_timed(seat, voice, system, group, bucket) for _ in range(count)]
            voice.tell("block", system=system.name, operations=operations, **cost.read())
    for system, group, start in zip(plan.systems, groups, before, strict=True):
        grown = {name: value - start.get(name, 0) for name, value in group.counters().items()}
        voice.tell("counters", system=system.name, counters=grown)
    voice.tell("cpu", seconds=time.process_time() - cpu_before)


def _timed(seat: Seat, voice: Voice, system: System, group: Averager, bucket: Bucket) -> dict[str, Any]:
    """One operation that all ranks begin together; from there to its end on this rank."""
    bucket.fill(seat.rank + 1)
    voice.gate()
    stolen_before, begin = stolen_seconds(), time.perf_counter()
    known = group.average(bucket)
    seconds, stolen = time.perf_counter() - begin, stolen_seconds() - stolen_before
    voice.gate()  # hosts share our cores: who is through first must not compute while the others still reduce
    checksum = crc32(bucket.data)
    wrong = _count_wrong(seat, system, known, bucket)
    return known | {"seconds": seconds, "stolen": stolen, "wrong": wrong, "checksum": checksum}


def _count_wrong(seat: Seat, system: System, known: dict[str, Any], bucket: Bucket) -> int:
    """Values that are not the mean although every contribution was included. Spoils the bucket."""
    if not known.get("clean", True):
        return 0
    mean = (seat.plan.ranks + 1) / 2
    allowed = _INT8_STEPS * mean if system.settings.get("wire") == "int8" else 0.0
    np.abs(np.subtract(bucket, mean, out=bucket), out=bucket)
    return int(np.count_nonzero(bucket > allowed))


def train(seat: Seat, voice: Voice, group: Averager) -> None:
    """Steps of some work and an all-reduce, with nothing else that holds the ranks together."""
    bucket = np.full(seat.plan.size // 4, seat.rank, dtype=np.float32)
    work = np.ones(200_000, dtype=np.float32)
    voice.gate()
    for step in range(seat.plan.iterations):
        begin = time.monotonic()
        for _ in range(_COMPUTE_ROUNDS):
            np.tanh(work, out=work)
        try:
            known = group.average(bucket)
        except OptiReduceError as error:
            text = f"{type(error).__name__}: {error}"
            voice.tell("failed", step=step, begin=begin, end=time.monotonic(), error=text)
            return
        voice.tell("step", step=step, begin=begin, end=time.monotonic(), **known)
    voice.tell("counters", system=seat.plan.systems[0].name, counters=group.counters())


def main() -> None:
    """Join the groups, do what the plan says, leave."""
    seat = Seat.from_json(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    voice = Voice()
    groups = [join(seat, index, system) for index, system in enumerate(seat.plan.systems)]
    voice.tell("ready")
    if seat.faulty:
        train(seat, voice, groups[0])
    else:
        measure(seat, voice, groups)
        voice.gate()  # nobody leaves before the others are through
    for group in groups:
        group.close()
    voice.tell("done")


if __name__ == "__main__":
    main()
