"""A stranger that floods a host: ``python -m optireduce.lab.flood_sender ADDRESS PER_SECOND PORT...``.

Ends when its standard input ends, so it never outlives the lab.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import sys
import time
from collections.abc import Sequence

_PAYLOAD_BYTES = 64
_UDP_SEGMENT = 103  # linux/udp.h
_PACKETS_PER_CALL = 32
_TICK_SECONDS = 0.001
_MOST_BEHIND_SECONDS = 0.02  # what a late wake-up missed beyond this is forgotten


def run(address: str, packets_per_second: int, ports: Sequence[int]) -> None:
    """Send until standard input ends."""
    targets = itertools.cycle([(address, port) for port in ports])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, _PAYLOAD_BYTES)
        payload = bytes(_PAYLOAD_BYTES * _PACKETS_PER_CALL)
        seconds_per_call = _PACKETS_PER_CALL / packets_per_second
        due = time.monotonic()
        while not select.select([sys.stdin], [], [], _TICK_SECONDS)[0]:
            now = time.monotonic()
            due = max(due, now - _MOST_BEHIND_SECONDS)
            while due < now:
                due += seconds_per_call
                with contextlib.suppress(OSError):  # no room, or a refusal that the host has sent back
                    channel.sendto(payload, next(targets))


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]])
