"""Forming a group: from "we are N ranks and can exchange a few bytes" to an engine whose packets get through.

Four rounds, each an all-gather in which a failure on one rank fails all of them at once: addresses and the
session's secret; ports and grants; path MTUs; who answered over UDP. And then whether to multicast:
multicast.py.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from . import multicast
from ._core import Engine, EngineOptions
from .auth import effective_auth, new_secret
from .config import Config
from .errors import ConnectError
from .exchange import Exchange, agree
from .grid import rows_for
from .interface import local_address
from .version import version

_SEED_BITS = 64
# Settings that decide what an operation means or when it ends: ranks that differ would wait for each other.
_SAME_EVERYWHERE = (
    "bounded", "delivery", "max_lag", "exclude_at_most", "min_ranks", "exact_silence_seconds",
    "warmup_operations", "shuffle", "hadamard", "wire", "auth", "multicast", "skip_above", "halt_after",
    "groups", "rejoin_pause_seconds", "check_parameters", "mend_differences",
)  # fmt: skip


@dataclass(frozen=True)
class Connection:
    """What forming a group gives a rank."""

    engine: Engine
    seed: int
    """The same on every rank, another in every session. No secret."""
    hosts: int
    """Different addresses among the ranks; the same number on every rank."""
    addresses: list[str]
    """Of every rank."""
    secret: bytes = field(repr=False)
    """Of the group."""
    mtu: int = 0
    """What all ranks send at most."""
    ports: list[list[int]] = field(default_factory=list)
    """Of every rank: its UDP port for each other rank."""
    grants: list[int] = field(default_factory=list)
    """Of every rank: what a peer may have unanswered towards it."""
    rows: list[list[int]] = field(default_factory=list)
    """Of a grid; empty: the group is flat."""


def connect(
    exchange: Exchange, config: Config, arrive_seconds: float, master: str, fixed_membership: bool
) -> Connection:
    """A connected engine, or an error on every rank that says which rank or path is at fault.

    ``arrive_seconds``: how long the slowest rank may take to get here. ``master``: see
    ``interface.local_address``. ``fixed_membership``: silent ranks end operations instead of being removed.
    """
    started = time.monotonic()
    hellos = agree(exchange, lambda: hello_of(exchange.rank, config, master), arrive_seconds)
    check_hellos(hellos)
    addresses: list[str] = [hello["address"] for hello in hellos]
    # From here on all ranks are present, and do the same short work.
    step_seconds = config.connect_timeout_seconds + min(time.monotonic() - started, arrive_seconds)
    secret = bytes.fromhex(hellos[0]["secret"])
    connector = _Connector(exchange, config, addresses, secret, fixed_membership)
    seed = int(hellos[0]["seed"], 16)
    try:
        engine = connector.run(step_seconds)
        if not connector.rows:
            multicast.settle(engine, exchange, config, addresses, seed, step_seconds)
        return Connection(
            engine,
            seed,
            connector.hosts,
            addresses,
            secret,
            connector.mtu,
            connector.ports,
            connector.grants,
            connector.rows,
        )
    except BaseException:
        connector.abandon()
        raise


class _Connector:
    """The rounds after the first; owns the engine until it is handed out."""

    def __init__(
        self, exchange: Exchange, config: Config, addresses: list[str], secret: bytes, fixed_membership: bool
    ) -> None:
        self._exchange = exchange
        self._fixed_membership = fixed_membership
        self._config = config
        self._addresses = addresses
        self._secret = secret
        self.hosts = len(set(addresses))
        flat = config.groups == "auto" and config.multicast == "on"  # what is asked for goes before "auto"
        self.rows = [] if flat else rows_for(config.groups, addresses)
        if self.rows and config.multicast == "on":
            raise ConnectError(
                f'multicast = "on" is not usable with groups = {config.groups!r}: ranks in {len(self.rows)} '
                'groups send what they reduced to a few others only; set groups to 1, or multicast to "auto"',
                [],
            )
        self._engine: Engine | None = None
        self.mtu = 0
        self.ports: list[list[int]] = []
        self.grants: list[int] = []

    def run(self, step_seconds: float) -> Engine:
        rank = self._exchange.rank
        doors = agree(self._exchange, self._create, step_seconds)
        assert self._engine is not None  # agree() raised otherwise
        engine = self._engine
        self.ports = [door["ports"] for door in doors]
        self.grants = [door["grant_bytes"] for door in doors]
        ports = [theirs[rank] for theirs in self.ports]
        mtus = agree(self._exchange, lambda: engine.open(self._addresses, ports), step_seconds)
        self.mtu = self._config.mtu or min(mtus)
        silent = agree(
            self._exchange,
            lambda: engine.begin(self.mtu, self.grants, self._config.connect_timeout_seconds),
            self._config.connect_timeout_seconds + step_seconds,
        )
        _check_reachable(silent, self._addresses, self.ports)
        return engine

    def abandon(self) -> None:
        if self._engine is not None:
            self._engine.close(0.0)

    def _create(self) -> dict[str, Any]:
        rank = self._exchange.rank
        size = self._exchange.size
        options = engine_options(self._config)
        options.fixed_membership = self._fixed_membership
        options.min_ranks = min(options.min_ranks, size)  # one setting serves the world and its subgroups
        auth = effective_auth(self._config.auth, self.hosts)
        self._engine = Engine(rank, size, self._addresses[rank], auth, self._secret, options, self.rows)
        return {"ports": list(self._engine.ports), "grant_bytes": self._engine.grant_bytes}


def engine_options(config: Config) -> EngineOptions:
    """The core's options: the settings of the same names."""
    options = EngineOptions()
    for name, value in vars(config).items():
        if hasattr(options, name):
            setattr(options, name, value)
    return options


def hello_of(rank: int, config: Config, master: str) -> dict[str, Any]:
    """What a rank says about itself first."""
    hello: dict[str, Any] = {
        "address": local_address(config.interface, master),
        "version": version(),
        "settings": {name: getattr(config, name) for name in _SAME_EVERYWHERE},
    }
    if rank == 0:
        hello["secret"] = new_secret().hex()
        # As text: JSON numbers are not exact to 64 bits everywhere.
        hello["seed"] = f"{secrets.randbits(_SEED_BITS):x}"
    return hello


def check_hellos(hellos: list[dict[str, Any]]) -> None:
    """ConnectError names the first rank that does not fit to rank 0, and why."""
    versions = [hello["version"] for hello in hellos]
    odd = _unlike_rank_0(versions)
    if odd:
        raise ConnectError(
            f"rank {odd[0]} runs optireduce {versions[odd[0]]}, rank 0 runs {versions[0]}: "
            f"install the same version everywhere",
            odd,
        )
    _check_settings([hello["settings"] for hello in hellos])
    addresses = [ipaddress.ip_address(hello["address"]) for hello in hellos]
    odd = _unlike_rank_0([(address.version, address.is_loopback) for address in addresses])
    if odd:
        raise ConnectError(
            f"rank 0 uses {addresses[0]}, rank {odd[0]} uses {addresses[odd[0]]}: they cannot reach each "
            f"other; set OPTIREDUCE_SOCKET_IFNAME to the interface of the shared network on every rank",
            odd,
        )


def _check_settings(settings: list[dict[str, Any]]) -> None:
    for name in _SAME_EVERYWHERE:
        odd = _unlike_rank_0([setting[name] for setting in settings])
        if odd:
            raise ConnectError(
                f"{name} is {settings[odd[0]][name]!r} on rank {odd[0]} and "
                f"{settings[0][name]!r} on rank 0: it must be the same on every rank",
                odd,
            )


def _unlike_rank_0(values: list[Any]) -> list[int]:
    return [rank for rank, value in enumerate(values) if value != values[0]]


def _check_reachable(silent: list[list[int]], addresses: list[str], ports: list[list[int]]) -> None:
    """``silent[i]``: the ranks that did not answer rank i."""
    lost = [(rank, peer) for rank, peers in enumerate(silent) for peer in peers]
    if not lost:
        return
    shown = [
        f"rank {rank} ({_endpoint(addresses[rank], ports[rank][peer])}) and "
        f"rank {peer} ({_endpoint(addresses[peer], ports[peer][rank])})"
        for rank, peer in lost[:8]
    ]
    more = f" and {len(lost) - 8} more pairs" if len(lost) > 8 else ""
    raise ConnectError(
        f"UDP does not get through between {'; '.join(shown)}{more}; does a firewall drop it? "
        f"UDP between the ranks' hosts must be allowed on all ports above 1023",
        sorted({peer for _, peer in lost}),
    )


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
