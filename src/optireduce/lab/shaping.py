"""Links of a given speed with queues of a given length: token buckets, and what they counted."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .errors import LabError
from .namespaces import Namespace

# As tc has them: rates in powers of ten, sizes in powers of two.
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit", re.IGNORECASE)
_RATE_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Queue:
    """What one interface's outgoing queue has counted since it was made. Bytes are those of frames."""

    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    waiting_bytes: int


@dataclass(frozen=True)
class Link:
    """Both directions of one host's link."""

    up: Queue
    """The host's own queue; it holds its programs back (a full socket buffer) before it drops."""
    down: Queue
    """The switch port's queue towards the host; what does not fit is dropped."""


def bits_per_second(rate: str, name: str = "rate") -> float:
    """The speed in ``200mbit``, ``1gbit`` or ``800kbit``; ``name`` is the setting, for the error."""
    match = _RATE.fullmatch(rate)
    value = float(match[1]) * _RATE_UNITS[match[2].lower()] if match else 0.0
    if value <= 0:
        raise LabError(f"{name} = {rate!r} is not usable: it must be a speed such as '200mbit' or '1gbit'")
    return value


def size_bytes(name: str, size: str) -> int:
    """The length in ``256k``, ``1m`` or ``65536``; ``name`` is the setting, for the error."""
    match = _SIZE.fullmatch(size)
    value = int(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match else 0
    if value <= 0:
        raise LabError(f"{name} = {size!r} is not usable: it must be a size such as '256k' or '1m'")
    return value


def shape(namespace: Namespace, device: str, rate: str, burst: int, limit: int) -> None:
    """Let ``device`` send ``rate`` on average, ``burst`` bytes at once; ``limit`` bytes may wait."""
    bucket = ("rate", rate, "burst", str(burst), "limit", str(limit))
    namespace.tc("qdisc", "replace", "dev", device, "root", "tbf", *bucket)


def read_queue(namespace: Namespace, device: str) -> Queue:
    """The counters of the device's outgoing queue."""
    queues = json.loads(namespace.tc("-s", "-j", "qdisc", "show", "dev", device, "root") or "[]")
    if not queues or "bytes" not in queues[0]:
        raise LabError(f"{device} in {namespace.name} has no queue with counters")
    found = queues[0]
    return Queue(found["bytes"], found["packets"], found["drops"], found.get("backlog", 0))
