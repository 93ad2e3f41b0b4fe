"""The wrong address makes ranks that never meet: refuse what other hosts cannot reach, and say what there
is."""

from __future__ import annotations

import pytest

from optireduce import InterfaceError, interface


def test_named_interface() -> None:
    assert interface.local_address("lo", "") == "127.0.0.1"


def test_route_to_the_master() -> None:
    assert interface.local_address("", "127.0.0.1") == "127.0.0.1"
    assert interface.local_address("", "localhost") in ("127.0.0.1", "::1")


def test_unknown_interface_lists_those_there_are() -> None:
    with pytest.raises(InterfaceError, match=r"'eth99'.*lo \(127\.0\.0\.1"):
        interface.local_address("eth99", "")


def test_unresolvable_master() -> None:
    with pytest.raises(InterfaceError, match=r"no-such-host\.invalid"):
        interface.local_address("", "no-such-host.invalid")


def test_ipv6_when_the_master_is_ipv6(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(
        interface, "_ipv6_addresses", lambda name: [interface.ipaddress.ip_address("fd00::5")]
    )
    assert interface.local_address("lo", "fd00::1") == "fd00::5"
    assert interface.local_address("lo", "10.0.0.1") == "127.0.0.1"


def test_link_local_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_addresses", lambda name: [interface.ipaddress.ip_address("fe80::1")])
    with pytest.raises(InterfaceError, match="link-local"):
        interface.local_address("lo", "")


def test_interface_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_addresses", lambda name: [])
    with pytest.raises(InterfaceError, match="no IP address"):
        interface.local_address("lo", "")


def test_own_name_that_means_loopback_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts maps the host's name to 127.0.1.1; other hosts would talk to themselves."""
    monkeypatch.setattr(interface, "_resolve", lambda host: [("127.0.1.1", interface.socket.AF_INET)])
    monkeypatch.setattr(interface, "_default_address", lambda: interface.ipaddress.ip_address("10.1.2.3"))
    assert interface.local_address("", "node0") == "10.1.2.3"
    assert interface.local_address("", "localhost") == "127.0.0.1"


def test_ipv6_table_is_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    table = tmp_path / "if_inet6"  # type: ignore[operator]
    table.write_text(
        "fe800000000000000042acfffe110002 02 40 20 80 eth0\n"
        "20010db8000000000000000000000007 02 40 00 80 eth0\n"
        "garbage\n"
        "00000000000000000000000000000001 01 80 10 80 lo\n"
    )
    monkeypatch.setattr(interface, "_IPV6_TABLE", table)
    assert [str(a) for a in interface._ipv6_addresses("eth0")] == ["fe80::42:acff:fe11:2", "2001:db8::7"]
