"""What the kernel offers: segmentation offloads for UDP and room for socket buffers."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from pathlib import Path

from ..units import format_size
from .finding import Finding, Verdict

# linux/udp.h; Python's socket module does not name them.
_UDP_SEGMENT = 103
_UDP_GRO = 104

_STOCK_BUFFER_BYTES = 212_992
_GOOD_BUFFER_BYTES = 1 << 20  # what Config.receive_buffer_bytes asks for
_ADVISED_BUFFER_BYTES = 4 << 20


def examine_kernel() -> Iterator[Finding]:
    """Offloads first: nothing else matters as much."""
    yield segmentation(_accepts(_UDP_SEGMENT, 1400))
    yield coalescing(_accepts(_UDP_GRO, 1))
    yield receive_buffer(_sysctl("rmem_max"))
    yield send_buffer(_sysctl("wmem_max"))


def segmentation(available: bool) -> Finding:
    """UDP_SEGMENT (GSO): one call sends 64 KB and the kernel cuts it into packets."""
    if available:
        return Finding("UDP_SEGMENT (GSO)", "available", Verdict.OK)
    advice = "a call per packet instead of one per 64 KB: 5-6 times slower. Linux 4.18 or later has it"
    return Finding("UDP_SEGMENT (GSO)", f"missing in Linux {platform.release()}", Verdict.SLOW, advice)


def coalescing(available: bool) -> Finding:
    """UDP_GRO: one call receives up to 64 KB of packets."""
    if available:
        return Finding("UDP_GRO", "available", Verdict.OK)
    advice = "packets are received one by one: 3-4 times slower. Linux 5.0 or later has it"
    return Finding("UDP_GRO", f"missing in Linux {platform.release()}", Verdict.SLOW, advice)


def receive_buffer(limit_bytes: int | None) -> Finding:
    """The largest receive buffer a program may ask for without privileges."""
    advice = (
        "few packets fit at once: up to 10 % slower, and now and then one is dropped and sent again. "
        f"sudo sysctl -w net.core.rmem_max={_ADVISED_BUFFER_BYTES}"
    )
    return _buffer("net.core.rmem_max", limit_bytes, _GOOD_BUFFER_BYTES, advice)


def send_buffer(limit_bytes: int | None) -> Finding:
    """The largest send buffer; a 64 KB send has to fit several times."""
    advice = f"senders must pause within a burst. sudo sysctl -w net.core.wmem_max={_ADVISED_BUFFER_BYTES}"
    return _buffer("net.core.wmem_max", limit_bytes, _STOCK_BUFFER_BYTES, advice)


def _buffer(name: str, limit_bytes: int | None, enough_bytes: int, advice: str) -> Finding:
    if limit_bytes is None:
        return Finding(name, "not readable", Verdict.OK, "not a Linux /proc; the system's default is used")
    found = f"{limit_bytes} ({format_size(limit_bytes)})"
    if limit_bytes >= enough_bytes:
        return Finding(name, found, Verdict.OK)
    return Finding(name, found, Verdict.SLOW, advice)


def _accepts(option: int, value: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_UDP, option, value)
        except OSError:
            return False
    return True


def _sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/net/core", name).read_text())
    except (OSError, ValueError):
        return None
