"""The program of the noisy neighbour: UDP at a steady rate to one random host, silence, and again.

``python -m optireduce.lab.burst_sender '<json of Bursts>' address...``. Ends when its standard input ends, so
it never outlives the lab. It sleeps between packets: a spinning sender would slow down what is measured.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import socket
import sys
import time
from collections.abc import Sequence

from .bursts import Bursts

PAYLOAD_BYTES = 1_400
FRAME_BYTES = PAYLOAD_BYTES + 42  # Ethernet, IP and UDP headers
_PORT = 9  # discard
_TICK_SECONDS = 0.001
_UDP_SEGMENT = 103  # linux/udp.h
_PACKETS_PER_CALL = 4  # halves the CPU it takes; many more would make the drops of queues coarse


class Pace:
    """How many calls may be made now: a token bucket that forgets what a late wake-up missed."""

    def __init__(self, mbit: float, now: float) -> None:
        self._calls_per_second = mbit * 1e6 / (8 * FRAME_BYTES * _PACKETS_PER_CALL)
        self._most = max(1.0, 20 * _TICK_SECONDS * self._calls_per_second)
        self._tokens = 0.0
        self._filled = now

    def take(self, now: float) -> int:
        """Whole calls earned since the last time."""
        earned = (now - self._filled) * self._calls_per_second
        self._tokens = min(self._most, self._tokens + earned)
        self._filled = now
        calls = int(self._tokens)
        self._tokens -= calls
        return calls


def run(bursts: Bursts, addresses: Sequence[str]) -> None:
    """Send until standard input ends."""
    chance = random.Random(bursts.seed)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        with contextlib.suppress(OSError):  # an old kernel sends each call's bytes in fragments
            channel.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, PAYLOAD_BYTES)
        while True:
            target = (chance.choice(addresses), _PORT)
            if _burst(channel, target, bursts.mbit, chance.expovariate(1e3 / bursts.on_ms)):
                return
            if bursts.off_ms > 0 and _ended_within(chance.expovariate(1e3 / bursts.off_ms)):
                return


def _burst(channel: socket.socket, target: tuple[str, int], mbit: float, seconds: float) -> bool:
    """Send for so long; whether standard input ended meanwhile."""
    payload = bytes(_PACKETS_PER_CALL * PAYLOAD_BYTES)
    now = time.monotonic()
    end = now + seconds
    pace = Pace(mbit, now)
    while now < end:
        for _ in range(pace.take(now)):
            try:
                channel.sendto(payload, target)
            except OSError:  # no room or no route (a host was cut off): it is noise, not data
                break
        if _ended_within(_TICK_SECONDS):
            return True
        now = time.monotonic()
    return False


def _ended_within(seconds: float) -> bool:
    """Sleep, unless standard input ends first. Nothing is ever written to it."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    run(Bursts(**json.loads(sys.argv[1])), sys.argv[2:])
