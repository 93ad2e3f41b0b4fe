"""Hosts on a switch, each a network namespace; what can be done to their network."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import shaping
from .background import Background, start_bursts, start_flood
from .bursts import Bursts
from .commands import check_requirements
from .errors import LabError
from .leaving import TerminationAsExit
from .loss import RandomLoss
from .namespaces import Namespace
from .pauses import Pauses, Pausing
from .remains import new_name, remove_remains
from .udp import open_udp_ports, refused_packets

INTERFACE = "eth0"  # of every host
_MOST_HOSTS = 200
_PREFIX = "10.213.78"
_NEIGHBOUR_ADDRESS = f"{_PREFIX}.254"
_FORWARDING, _DISABLED = "3", "0"  # states of a bridge port
SWITCH_QUEUE = "256k"  # of a port of a small switch
_RUN_SECONDS = 60.0


class Lab:
    """``with Lab(hosts=4, rate="200mbit") as lab:`` a network that ends with the block, however it ends.

    ``rate``: of each host's link, each way (None: as fast as the machine). ``egress_rate``: of what hosts
    send, where that is slower than what they receive. ``switch_queue``: bytes that may wait at a switch port
    before it drops. ``host_queue``: bytes that may wait in a host. ``burst``: bytes
    that go at once after a silence. ``congestion_control``: TCP's, between the hosts. ``offload``: let the
    kernel carry up to 64 KB as one packet, which costs least CPU; a switch queue and random loss then drop up
    to 64 KB at once. False: every packet is one of at most the MTU.
    """

    def __init__(
        self,
        hosts: int = 4,
        rate: str | None = "200mbit",
        switch_queue: str = SWITCH_QUEUE,
        host_queue: str = "1m",
        burst: str = "64k",
        congestion_control: str = "cubic",
        offload: bool = True,
        egress_rate: str | None = None,
    ) -> None:
        if not 1 <= hosts <= _MOST_HOSTS:
            raise LabError(f"hosts = {hosts!r} is not usable: it must be from 1 to {_MOST_HOSTS}")
        if rate is None and egress_rate is not None:
            raise LabError(f"egress_rate = {egress_rate!r} is not usable: it needs a rate too")
        for name, speed in (("rate", rate), ("egress_rate", egress_rate)):
            if speed is not None:
                shaping.bits_per_second(speed, name)
        self.rate = rate
        self._egress_rate = egress_rate or rate
        self.name = new_name()
        self.interface = INTERFACE
        self.addresses = tuple(f"{_PREFIX}.{host + 1}" for host in range(hosts))
        self._switch_queue = shaping.size_bytes("switch_queue", switch_queue)
        self._host_queue = shaping.size_bytes("host_queue", host_queue)
        self._burst = shaping.size_bytes("burst", burst)
        self._congestion_control = congestion_control
        self._offload = offload
        self._owner = os.getpid()
        self._switch: Namespace | None = None
        self._hosts: list[Namespace] = []
        self._losses: list[RandomLoss] = []  # of the hosts
        self._neighbour: Namespace | None = None
        self._background: Background | None = None
        self._pausing: Pausing | None = None
        self._termination = TerminationAsExit()

    def __enter__(self) -> Lab:
        check_requirements()
        remove_remains()
        self._termination.begin()
        atexit.register(self.close)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process in the lab and remove it. May be repeated; a forked child's call does nothing."""
        if os.getpid() != self._owner:
            return
        try:
            self.stop_pauses()
            self.stop_background()
        finally:
            namespaces = [*self._hosts, *filter(None, (self._neighbour, self._switch))]
            for namespace in namespaces:
                namespace.delete()
            self._hosts, self._losses, self._neighbour, self._switch = [], [], None, None
            atexit.unregister(self.close)
            self._termination.end()

    # --- Programs ----------------------------------------------------------------------------------------

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start ``command`` on a host; options as for subprocess.Popen. It is killed when the lab ends."""
        return self._host(host).popen(command, **options)

    def run(
        self, host: int, command: Sequence[str], timeout: float = _RUN_SECONDS, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run ``command`` on a host to its end; options as for subprocess.run."""
        return subprocess.run(self._host(host).inside(command), timeout=timeout, **options)

    # --- The network -------------------------------------------------------------------------------------

    def set_loss(self, probability: float, host: int | None = None) -> None:
        """Drop packets that arrive at ``host`` (None: at every host) with this probability."""
        for loss in self._chosen_losses(host):
            loss.set(probability)

    def clear_loss(self, host: int | None = None) -> None:
        """End the random loss at ``host``, or at every host."""
        for loss in self._chosen_losses(host):
            loss.clear()

    def dropped_by_loss(self, host: int) -> int:
        """Packets that random loss took from ``host`` since it was set."""
        return self._chosen_losses(host)[0].dropped_packets()

    def cut(self, host: int) -> None:
        """Let nothing pass between ``host`` and the others. Its own interface stays up, unaware."""
        self._set_port(host, _DISABLED)

    def restore(self, host: int) -> None:
        """End a cut."""
        self._set_port(host, _FORWARDING)

    def split(self, side: Sequence[int]) -> None:
        """Let nothing pass between the hosts of ``side`` and all others, until :meth:`heal`. Within each side
        everything passes.

        Hosts are told their own hardware address for those on the other side: the switch drops such frames.
        """
        for host, other in self._across(side):
            namespace = self._host(host)
            own = namespace.call("cat", f"/sys/class/net/{INTERFACE}/address").strip()
            namespace.ip(
                "neigh", "replace", self.addresses[other], "lladdr", own, "dev", INTERFACE, "nud", "permanent"
            )

    def heal(self, side: Sequence[int]) -> None:
        """End a split."""
        for host, other in self._across(side):
            self._host(host).ip("neigh", "del", self.addresses[other], "dev", INTERFACE)

    def link(self, host: int) -> shaping.Link:
        """What the queues of a host's shaped link have counted."""
        if self.rate is None:
            raise LabError("rate = None has no queues that count: make the lab with a rate")
        namespace = self._host(host)
        up = shaping.read_queue(namespace, INTERFACE)
        return shaping.Link(up, shaping.read_queue(self._the_switch(), _port(host)))

    def background(self, on_ms: float, off_ms: float, mbit: float, seed: int = 0) -> None:
        """Bursts of UDP from an extra, unshaped host: at ``mbit`` to one random host for ``on_ms`` on
        average, then ``off_ms`` of silence on average, both exponential. Replaces earlier bursts."""
        self.stop_background()
        bursts = Bursts(on_ms, off_ms, mbit, seed)
        self._background = start_bursts(self._the_neighbour(), bursts, self.addresses)

    def flood(self, host: int, packets_per_second: int) -> None:
        """Small UDP packets of a stranger to every UDP port that is open on ``host``, in turn. Replaces
        bursts and an earlier flood."""
        self.stop_background()
        ports = open_udp_ports(self._host(host))
        self._background = start_flood(self._the_neighbour(), self.addresses[host], ports, packets_per_second)

    def refused_packets(self, host: int) -> int:
        """UDP packets that came to ``host`` and that no socket would take, since it was made."""
        return refused_packets(self._host(host))

    @property
    def background_running(self) -> bool:
        """Whether bursts are being sent."""
        return self._background is not None and self._background.running

    def stop_background(self) -> None:
        """End the bursts; nothing where there are none."""
        if self._background is not None:
            self._background.stop()
            self._background = None

    def stop_host(self, host: int) -> None:
        """All programs of ``host`` stand still, as on a machine that swaps or is moved."""
        self._host(host).stop_processes()

    def resume_host(self, host: int) -> None:
        """End a stop."""
        self._host(host).resume_processes()

    def kill_host(self, host: int) -> None:
        """All programs of ``host`` die at once; its network stays."""
        self._host(host).kill_processes()

    def pause_hosts(self, pauses: Pauses, seed: int = 0) -> None:
        """Now and then a random host's programs stand still. Replaces earlier pauses."""
        self.stop_pauses()
        self._the_switch()
        self._pausing = Pausing(self._hosts, pauses, seed)

    def stop_pauses(self) -> None:
        """End the pauses; nothing where there are none."""
        if self._pausing is not None:
            self._pausing.stop()
            self._pausing = None

    # --- Inside ------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._switch = Namespace(f"{self.name}-switch")
        self._switch.ip("link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
        self._switch.ip("link", "set", "switch", "up")
        for protocol in ("ip", "ip6", "arp"):  # a switch has no firewall, and need not pay for one
            with contextlib.suppress(LabError):  # a kernel without bridge netfilter
                self._switch.call("tee", f"/proc/sys/net/bridge/bridge-nf-call-{protocol}tables", text="0")
        for host, address in enumerate(self.addresses):
            namespace = self._new_host(f"host{host}", _port(host), address)
            self._hosts.append(namespace)
            self._losses.append(RandomLoss(namespace))
            if self.rate is not None and self._egress_rate is not None:
                shaping.shape(namespace, INTERFACE, self._egress_rate, self._burst, self._host_queue)
                shaping.shape(self._switch, _port(host), self.rate, self._burst, self._switch_queue)

    def _new_host(self, name: str, port: str, address: str) -> Namespace:
        """A namespace with a cable to the switch."""
        switch = self._the_switch()
        host = Namespace(f"{self.name}-{name}")
        try:
            peer = ("type", "veth", "peer", "name", port, "netns", switch.name)
            host.ip("link", "add", INTERFACE, *peer)
            if not self._offload:
                host.ip("link", "set", INTERFACE, "gso_max_segs", "1")
            switch.ip("link", "set", port, "master", "switch", "up")
            host.ip("address", "add", f"{address}/24", "dev", INTERFACE)
            host.ip("link", "set", INTERFACE, "up")
            self._choose_congestion_control(host)
        except BaseException:
            host.delete()
            raise
        return host

    def _the_neighbour(self) -> Namespace:
        if self._neighbour is None:
            self._neighbour = self._new_host("neighbour", "port-neighbour", _NEIGHBOUR_ADDRESS)
        return self._neighbour

    def _choose_congestion_control(self, host: Namespace) -> None:
        """By its route: only the first namespace of a machine may make any algorithm its default."""
        algorithm = ("congctl", self._congestion_control)
        host.ip("route", "change", f"{_PREFIX}.0/24", "dev", INTERFACE, "scope", "link", *algorithm)

    def _set_port(self, host: int, state: str) -> None:
        self._host(host)
        self._the_switch().bridge("link", "set", "dev", _port(host), "state", state)

    def _across(self, side: Sequence[int]) -> list[tuple[int, int]]:
        """All pairs of hosts on different sides, both ways."""
        others = [host for host in range(len(self.addresses)) if host not in side]
        return [pair for one in side for other in others for pair in ((one, other), (other, one))]

    def _chosen_losses(self, host: int | None) -> list[RandomLoss]:
        if host is None:
            self._the_switch()
            return self._losses
        self._host(host)
        return [self._losses[host]]

    def _host(self, host: int) -> Namespace:
        self._the_switch()
        if not 0 <= host < len(self._hosts):
            raise LabError(f"host = {host!r} is not usable: it must be from 0 to {len(self._hosts) - 1}")
        return self._hosts[host]

    def _the_switch(self) -> Namespace:
        if self._switch is None:
            raise LabError("the lab is not open: use it inside its `with` block")
        return self._switch


def _port(host: int) -> str:
    return f"port{host}"
