"""Which local address the group uses: the named interface's, else the one that routes to the master."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from .errors import InterfaceError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SIOCGIFADDR = 0x8915  # linux/sockios.h: IPv4 address of an interface
_INTERFACES = Path("/sys/class/net")
_IPV6_TABLE = Path("/proc/net/if_inet6")
# Documentation addresses (RFC 5737, RFC 3849): connecting a UDP socket sends nothing, it only asks the
# routing table.
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
_DISCARD_PORT = 9


def local_address(interface: str, master: str) -> str:
    """The address to bind to.

    ``interface``: its name, or "" to follow the route to ``master`` (a host name or address; "" when nobody
    knows). Raises InterfaceError when there is nothing usable.
    """
    if interface:
        return str(_address_of(interface, prefer_ipv6=_is_ipv6(master)))
    return str(_address_towards(master) if master else _default_address())


def interfaces() -> dict[str, list[str]]:
    """Every interface of this host with its usable addresses."""
    try:
        names = sorted(os.listdir(_INTERFACES))
    except OSError:
        names = sorted(name for _, name in socket.if_nameindex())
    return {name: [str(address) for address in _usable(_addresses(name))] for name in names}


def _address_of(interface: str, prefer_ipv6: bool) -> Address:
    known = interfaces()
    if interface not in known:
        raise InterfaceError(
            f"there is no network interface {interface!r} on this host; there are: {_listing(known)}"
        )
    every = _addresses(interface)
    usable = sorted(_usable(every), key=lambda address: (address.version == 6) != prefer_ipv6)
    if usable:
        return usable[0]
    if every:
        raise InterfaceError(
            f"interface {interface!r} has only link-local addresses ({', '.join(map(str, every))}), which "
            f"other hosts cannot name; give it an IPv4 or a global IPv6 address, or use: {_listing(known)}"
        )
    raise InterfaceError(f"interface {interface!r} has no IP address; use one of: {_listing(known)}")


def _address_towards(master: str) -> Address:
    source = None
    for host, family in _resolve(master):
        source = _route_source(host, family)
        if source is not None:
            break
    if source is None:
        raise InterfaceError(
            f"no route from this host to the master {master!r}; name an interface: {_listing(interfaces())}"
        )
    if source.is_link_local:
        raise InterfaceError(
            f"the route to the master {master!r} leaves from link-local {source}; name another interface"
        )
    if source.is_loopback and not _means_loopback(master):
        # Debian maps a host's own name to 127.0.1.1; other hosts could not reach us there.
        return _default_address()
    return source


def _default_address() -> Address:
    """Source of the default route; loopback on a host without one."""
    for host, family in zip(_ANYWHERE, (socket.AF_INET, socket.AF_INET6), strict=True):
        source = _route_source(host, family)
        if source is not None and not source.is_link_local:
            return source
    return ipaddress.IPv4Address("127.0.0.1")


def _resolve(host: str) -> list[tuple[str, socket.AddressFamily]]:
    try:
        found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise InterfaceError(f"the master's name {host!r} cannot be resolved: {error}") from None
    return [(str(entry[4][0]), entry[0]) for entry in found]


def _route_source(host: str, family: socket.AddressFamily) -> Address | None:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return ipaddress.ip_address(probe.getsockname()[0].split("%")[0])
    except OSError:
        return None


def _addresses(interface: str) -> list[Address]:
    return [*_ipv4_addresses(interface), *_ipv6_addresses(interface)]


def _ipv4_addresses(interface: str) -> list[Address]:
    request = struct.pack("256s", os.fsencode(interface)[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:  # no IPv4 address on it
        return []
    return [ipaddress.IPv4Address(answer[20:24])]  # struct ifreq: 16 bytes of name, 4 of sockaddr_in


def _ipv6_addresses(interface: str) -> list[Address]:
    try:
        lines = _IPV6_TABLE.read_text().splitlines()
    except OSError:  # IPv6 switched off
        return []
    rows = [line.split() for line in lines]
    return [ipaddress.IPv6Address(int(row[0], 16)) for row in rows if len(row) == 6 and row[5] == interface]


def _usable(addresses: list[Address]) -> list[Address]:
    return [address for address in addresses if not address.is_link_local]


def _is_ipv6(host: str) -> bool:
    return ":" in host  # host names have none


def _means_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("localhost.")


def _listing(known: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} ({', '.join(found) or 'no address'})" for name, found in known.items())
