"""Which interfaces there are, and which address ranks on this host would use."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ...config import Config
from ...errors import ConfigError, InterfaceError
from ...interface import interfaces, local_address
from .finding import Finding, Verdict

_ETHERNET_MTU = 1500
_SMALLEST_MTU = 576  # what every IPv4 host must take (RFC 791)
_ECHO_SECONDS = 1.0


def examine_network() -> Iterator[Finding]:
    """Interfaces that have an address, then the address that ranks would bind to."""
    for name, addresses in interfaces().items():
        mtu = _read_mtu(name)
        if addresses and mtu is not None:
            yield interface(name, mtu, addresses)
    yield from _chosen_address()


def interface(name: str, mtu: int, addresses: list[str]) -> Finding:
    """One interface: the larger its packets, the less work per byte."""
    found = f"MTU {mtu}, {', '.join(addresses)}"
    if mtu < _SMALLEST_MTU:
        advice = f"packets too small for the protocol: ip link set dev {name} mtu {_ETHERNET_MTU}"
        return Finding(f"interface {name}", found, Verdict.BROKEN, advice)
    if mtu < _ETHERNET_MTU:
        advice = f"more packets, so more CPU. Where possible: ip link set dev {name} mtu {_ETHERNET_MTU}"
        return Finding(f"interface {name}", found, Verdict.SLOW, advice)
    if mtu < 2 * _ETHERNET_MTU:
        advice = "jumbo frames (MTU 9000), if all switches allow them, save 2-11 % of the time"
        return Finding(f"interface {name}", found, Verdict.OK, advice)
    return Finding(f"interface {name}", found, Verdict.OK)


def _chosen_address() -> Iterator[Finding]:
    master = os.environ.get("MASTER_ADDR", "")
    try:
        chosen = Config.from_env().interface
        address = local_address(chosen, master)
    except (ConfigError, InterfaceError) as error:
        advice = "ranks on this host cannot start: set OPTIREDUCE_SOCKET_IFNAME to a usable interface"
        yield Finding("address of a rank", str(error), Verdict.BROKEN, advice)
        return
    why = f"interface {chosen}" if chosen else f"route to {master}" if master else "default route"
    yield Finding("address of a rank", f"{address} ({why})", *_loopback_remark(address))
    yield _echo(address)


def _loopback_remark(address: str) -> tuple[Verdict, str]:
    if address.startswith("127.") or address == "::1":
        return (
            Verdict.OK,
            "loopback: for ranks on this host only; else set OPTIREDUCE_SOCKET_IFNAME or MASTER_ADDR",
        )
    return Verdict.OK, ""


def _echo(address: str) -> Finding:
    """A packet from the address to itself: what a strict local firewall would already drop."""
    what = "UDP to own address"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
            sock.settimeout(_ECHO_SECONDS)
            sock.sendto(b"echo", sock.getsockname())
            sock.recv(16)
    except OSError as error:
        advice = "ranks on this host cannot reach each other: allow UDP between them in the firewall"
        return Finding(what, f"{error}", Verdict.BROKEN, advice)
    return Finding(what, "arrives", Verdict.OK)


def _read_mtu(name: str) -> int | None:
    try:
        return int(Path("/sys/class/net", name, "mtu").read_text())
    except (OSError, ValueError):
        return None
