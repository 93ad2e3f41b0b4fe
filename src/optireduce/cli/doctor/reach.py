"""Do packets pass between two hosts, of which size, how fast, how many are lost?

The listener sends every probe back to where it came from, at the same length, so it cannot amplify traffic.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from dataclasses import dataclass
from statistics import median

_MAGIC = b"optidoc1"
_HEADER = struct.Struct("!8scI")  # magic, P(robe) or E(cho), number
_PROBES = 20
_PATIENCE_SECONDS = 1.0
_GIVE_UP_AFTER = 5  # probes lost in a row
_LARGEST_DATAGRAM = 65_507  # IPv4's limit
_SIZES = (64, 512, 1200, 1472, 4096, 8972)

# linux/in.h and in6.h: let no router cut packets, and ask for the path's MTU. Python does not name them.
_DONT_FRAGMENT = 2
_IPV4 = (socket.IPPROTO_IP, 10, 14, 28)  # level, MTU_DISCOVER, MTU, bytes of IP + UDP header
_IPV6 = (socket.IPPROTO_IPV6, 23, 24, 48)


@dataclass(frozen=True)
class Probe:
    """What happened to the probes of one size."""

    payload_bytes: int
    packet_bytes: int  # with IP and UDP header
    sent: int
    answered: int
    rtt_seconds: float | None  # median; None: no answer

    @property
    def lost(self) -> int:
        """Probes without an answer."""
        return self.sent - self.answered


def open_listener(port: int) -> socket.socket:
    """A socket for `serve`, for IPv6 and IPv4 alike where the host has both. Port 0: any free one."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", port))
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("0.0.0.0", port))
    return sock


def serve(sock: socket.socket, seconds: float) -> int:
    """Answer probes for so long; returns how many."""
    deadline = time.monotonic() + seconds
    answered = 0
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            packet, sender = sock.recvfrom(65_536)
        except TimeoutError:
            break
        if is_probe(packet):
            sock.sendto(_HEADER.pack(_MAGIC, b"E", _number(packet)) + packet[_HEADER.size :], sender)
            answered += 1
    return answered


def is_probe(packet: bytes) -> bool:
    """Whether this came from another doctor and asks for an answer."""
    return len(packet) >= _HEADER.size and packet.startswith(_MAGIC + b"P")


def _number(packet: bytes) -> int:
    number: int = _HEADER.unpack_from(packet)[2]
    return number


def probe_path(host: str, port: int) -> tuple[int, list[Probe]]:
    """The path's MTU as this host knows it, and probes of growing size up to it, until a size fails.

    Raises OSError when the host cannot be found or refuses.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    level, discover, mtu_option, header = _IPV6 if family == socket.AF_INET6 else _IPV4
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(level, discover, _DONT_FRAGMENT)
        sock.connect(address)
        probes = []
        for payload in _payloads(sock.getsockopt(level, mtu_option) - header):
            probes.append(_probe(sock, payload, header))
            if probes[-1].answered == 0:
                break
        return sock.getsockopt(level, mtu_option), probes


def _payloads(largest: int) -> list[int]:
    largest = min(largest, _LARGEST_DATAGRAM)
    return [size for size in _SIZES if size < largest] + [largest]


def _probe(sock: socket.socket, payload: int, header: int) -> Probe:
    times: list[float] = []
    sent = lost_in_a_row = 0
    while sent < _PROBES and lost_in_a_row < _GIVE_UP_AFTER:
        sent += 1
        seconds = _round_trip(sock, sent, payload)
        lost_in_a_row = lost_in_a_row + 1 if seconds is None else 0
        if seconds is not None:
            times.append(seconds)
    return Probe(payload, payload + header, sent, len(times), median(times) if times else None)


def _round_trip(sock: socket.socket, number: int, payload: int) -> float | None:
    """Seconds until the answer to this very probe, or None."""
    probe = probe_packet(number, payload)
    start = time.monotonic()
    try:
        sock.send(probe)
        while (left := start + _PATIENCE_SECONDS - time.monotonic()) > 0:
            sock.settimeout(left)
            answer = sock.recv(65_536)
            if answer_to(answer, number, payload):
                return time.monotonic() - start
    except TimeoutError:
        return None
    except OSError as error:
        if error.errno == errno.EMSGSIZE:  # a router told us in the meantime that the path is narrower
            return None
        raise
    return None


def probe_packet(number: int, payload: int) -> bytes:
    """What a listener sends back."""
    return _HEADER.pack(_MAGIC, b"P", number).ljust(payload, b"\0")


def answer_to(packet: bytes, number: int, payload: int) -> bool:
    """Whether it is what a listener made of that probe."""
    return len(packet) == payload and packet.startswith(_MAGIC + b"E") and _number(packet) == number
