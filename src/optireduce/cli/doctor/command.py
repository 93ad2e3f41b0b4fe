"""`optireduce doctor`: examine this machine, or the path to another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ..console import print_table, say
from ..errors import CommandFailed, UsageError
from ..units import format_seconds
from .finding import Finding, Verdict, render
from .group import group_round_trip, join_everywhere
from .reach import Probe, open_listener, probe_path, serve


def doctor(
    listen: Annotated[bool, typer.Option("--listen", help="Wait here for another host's --peer.")] = False,
    peer: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Probe the path to a host that runs --listen.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="With --listen: the port (0: any free one).")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="With --listen: for how long.")] = 300,
) -> None:
    """Check that this machine is fit for fast UDP, say what each shortcoming costs and how to fix it.

    Between two hosts: run `optireduce doctor --listen` on one and `optireduce doctor --peer HOST:PORT` on
    the other, with the port the first one prints. Packets of several sizes up to the path's MTU are
    exchanged, and a few by multicast; round-trip time and loss are shown.

    The exit code is 1 when something is broken.
    """
    if listen and peer is not None:
        raise UsageError("--listen, --peer: give one of them; one host listens, the other probes")
    if listen:
        _listen(port, seconds)
        return
    findings = list(_examine_path(*parse_peer(peer)) if peer is not None else _examine_machine())
    print_table(render(findings))
    if any(finding.verdict is Verdict.BROKEN for finding in findings):
        raise typer.Exit(1)


def parse_peer(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not host
        or (":" in host and not bracketed)
        or not port.isdecimal()
        or not 0 < int(port) < 65_536
    ):
        raise UsageError(
            f"--peer: {text!r} is not an address; write host:port or [ipv6]:port, as --listen printed it"
        )
    return host.strip("[]"), int(port)


def _listen(port: int, seconds: float) -> None:
    try:
        sock = open_listener(port)
    except OSError as error:
        raise CommandFailed(f"--listen: UDP port {port} cannot be opened: {error.strerror}") from error
    with sock:
        join_everywhere(sock)
        chosen = sock.getsockname()[1]
        say(f"listening on UDP port {chosen} for {seconds:g} s")
        say(f"on the other host: optireduce doctor --peer THIS_HOST:{chosen}")
        try:
            say(f"answered {serve(sock, seconds)} probes")
        except KeyboardInterrupt:
            say("stopped")


def _examine_machine() -> Iterator[Finding]:
    from .kernel import examine_kernel
    from .network import examine_network
    from .software import examine_software

    yield from examine_software()
    yield from examine_kernel()
    yield from examine_network()


def _examine_path(host: str, port: int) -> Iterator[Finding]:
    try:
        mtu, probes = probe_path(host, port)
    except OSError as error:
        advice = f"is `optireduce doctor --listen` running on {host}, with this port?"
        yield Finding(f"path to {host}", error.strerror or str(error), Verdict.BROKEN, advice)
        return
    yield Finding(f"path to {host}", f"MTU {mtu}", Verdict.OK)
    largest_passing = max((probe.packet_bytes for probe in probes if probe.answered), default=None)
    for probe in probes:
        yield judge(probe, largest_passing)
    if largest_passing is not None:
        yield judge_group(group_round_trip(host, port))


def judge(probe: Probe, largest_passing: int | None) -> Finding:
    """What the probes of one size tell."""
    what = f"UDP, {probe.packet_bytes}-byte packets"
    if probe.rtt_seconds is None:
        return Finding(what, f"all {probe.sent} lost", Verdict.BROKEN, _why_nothing_passes(largest_passing))
    found = f"round trip {format_seconds(probe.rtt_seconds)}, {probe.lost} of {probe.sent} lost"
    if probe.lost:
        advice = "lost packets are sent again: 0.1 % loss costs up to 25 % more time, 1 % up to 75 %"
        return Finding(what, found, Verdict.SLOW, advice)
    return Finding(what, found, Verdict.OK)


def judge_group(rtt_seconds: float | None) -> Finding:
    """What the probe by multicast tells."""
    if rtt_seconds is None:
        advice = 'Config.multicast = "on" would fail: leave it "off", or let switches and firewalls pass it'
        return Finding("multicast", "does not arrive", Verdict.SLOW, advice)
    return Finding("multicast", f"arrives, round trip {format_seconds(rtt_seconds)}", Verdict.OK)


def _why_nothing_passes(largest_passing: int | None) -> str:
    if largest_passing is None:
        return (
            "ranks cannot reach each other: allow UDP between the hosts in both firewalls; check the address"
        )
    return f"the path swallows large packets: fix it, or set OPTIREDUCE_MTU={largest_passing} on all ranks"
