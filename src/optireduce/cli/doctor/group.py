"""Does multicast get from this host to another one? The listener is in a group, and answers what comes there
as it answers everything: singly."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from .reach import answer_to, probe_packet

_IPV4_GROUP = "239.192.79.82"
_IPV6_GROUP = "ff15::8000:4f52"
_PROBES = 5
_PROBE_SECONDS = 0.06  # for the answer to each: a switch that knows the group needs no longer
_PACKET_BYTES = 64


def join_everywhere(sock: socket.socket) -> None:
    """Let a listener hear the group on all interfaces that can."""
    for index, _ in socket.if_nameindex():
        with contextlib.suppress(OSError):
            request = struct.pack("@4s4si", socket.inet_aton(_IPV4_GROUP), b"\0\0\0\0", index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        with contextlib.suppress(OSError):
            request = socket.inet_pton(socket.AF_INET6, _IPV6_GROUP) + struct.pack("@I", index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)


def group_round_trip(host: str, port: int) -> float | None:
    """Seconds until a listener at ``host`` has answered what was multicast from here; None: it did not."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind(_source_towards(family, address))
        try:
            return _probe(sock, _prepare(sock, family, port), address[0])
        except OSError:  # no interface or route for it
            return None


def _source_towards(family: int, address: tuple[object, ...]) -> tuple[object, ...]:
    """The address that packets to the listener leave from, and any port."""
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect(address)
        source = route.getsockname()
    return (source[0], 0, *source[2:])


def _prepare(sock: socket.socket, family: int, port: int) -> tuple[object, ...]:
    """Chooses the interface to multicast from; returns where to."""
    if family == socket.AF_INET:
        source = socket.inet_aton(sock.getsockname()[0])
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, source)
        return (_IPV4_GROUP, port)
    return (_IPV6_GROUP, port)


def _probe(sock: socket.socket, group: tuple[object, ...], listener: object) -> float | None:
    for number in range(_PROBES):
        start = time.monotonic()
        sock.sendto(probe_packet(number, _PACKET_BYTES), group)
        while (left := start + _PROBE_SECONDS - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                packet, sender = sock.recvfrom(65_536)
            except TimeoutError:
                break
            if sender[0] == listener and answer_to(packet, number, _PACKET_BYTES):
                return time.monotonic() - start
    return None
