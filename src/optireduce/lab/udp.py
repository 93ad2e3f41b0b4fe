"""What a host's kernel knows about its UDP sockets."""

from __future__ import annotations

from .errors import LabError
from .namespaces import Namespace


def open_udp_ports(host: Namespace) -> list[int]:
    """Ports of its IPv4 sockets."""
    lines = host.call("cat", "/proc/net/udp").splitlines()[1:]
    ports = sorted({int(line.split()[1].rpartition(":")[2], 16) for line in lines})
    if not ports:
        raise LabError("a flood needs a host with an open UDP port: start its ranks first")
    return ports


def refused_packets(host: Namespace) -> int:
    """Packets that no socket would take: a connected one takes only its peer's."""
    lines = host.call("cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp: "))
    return int(values[names.index("NoPorts")])
