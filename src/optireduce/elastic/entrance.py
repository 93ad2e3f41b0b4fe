"""How a restarted process joins the group of a record: it asks the ranks of the group what they know, and
makes an engine that fits in."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._core import Engine
from ..auth import effective_auth
from ..config import Config
from ..connect import Connection, check_hellos, engine_options, hello_of
from ..errors import ConnectError
from ..snapshot.channel import ChannelError, greet, snapshot_key
from ..snapshot.requests import CONNECT_SECONDS, Peers, Refused
from .arrival import Survey
from .record import Entry, Record

_ANSWERS_OF_TRAINING = ("training", "left behind")


def peers_of(record: Record, rank: int) -> Peers:
    """The doors of all other ranks."""
    doors = {n: (entry.address, entry.door) for n, entry in enumerate(record.ranks) if n != rank}
    return Peers(rank, snapshot_key(record.secret), doors)


def survey(record: Record, rank: int) -> Survey:
    """Ask every rank of a record's group, at the same time."""
    peers = peers_of(record, rank)
    with ThreadPoolExecutor(record.size, "optireduce-join") as pool:
        twin = pool.submit(_is_answered, record, rank)
        answers = dict(zip(peers.doors, pool.map(lambda peer: _ask(peers, peer), peers.doors), strict=True))
    training = set()
    for peer, answer in answers.items():
        try:
            theirs = Record.of(answer["record"])
        except (KeyError, ValueError):
            continue
        if theirs.session == record.session and answer.get("standing") in _ANSWERS_OF_TRAINING:
            training.add(peer)
            record = record.joined(theirs)
    return Survey(record, frozenset(training), twin.result())


def enter(record: Record, rank: int, config: Config, master: str) -> tuple[Connection, Entry]:
    """The engine of the rank's next process, and its entry in the record but for its door (0). ConnectError
    names what does not fit to the group."""
    hello = hello_of(rank, config, master)
    hellos: list[dict[str, Any]] = [
        {"address": entry.address, "version": record.version, "settings": record.settings}
        for entry in record.ranks
    ]
    hellos[rank] = hello
    check_hellos(hellos)
    addresses = [entry.address for entry in record.ranks]
    addresses[rank] = hello["address"]
    options = engine_options(config)
    options.fixed_membership = False
    options.min_ranks = min(options.min_ranks, record.size)
    options.incarnation = record.ranks[rank].incarnation + 1
    auth = effective_auth(config.auth, record.hosts)
    rows = [list(row) for row in record.rows]
    engine = Engine(rank, record.size, addresses[rank], auth, record.secret, options, rows)
    try:
        entry = Entry(options.incarnation, addresses[rank], tuple(engine.ports), engine.grant_bytes, 0)
        ranks = [*record.ranks[:rank], entry, *record.ranks[rank + 1 :]]
        mtu = engine.open(addresses, [each.ports[rank] for each in ranks])
        if mtu < record.mtu:
            raise ConnectError(
                f"the path MTU of rank {rank} is {mtu} bytes here, and its group sends packets of "
                f"{record.mtu}: start it on a host like that of the other ranks",
                [rank],
            )
        grants = [each.grant_bytes for each in ranks]
        engine.begin(record.mtu, grants, 0.0)  # waits for nobody: they do not know our ports yet
    except BaseException:
        engine.close(0.0)
        raise
    ports = [list(each.ports) for each in ranks]
    found = Connection(
        engine, record.seed, record.hosts, addresses, record.secret, record.mtu, ports, grants, rows
    )
    return found, entry


def _ask(peers: Peers, peer: int) -> dict[str, Any]:
    with contextlib.suppress(OSError, ChannelError, Refused):
        return peers.ask(peer, {"ask": "group"})
    return {}


def _is_answered(record: Record, rank: int) -> bool:
    """Whether the process of our own rank that the record names still runs: it proves that it knows the
    secret, whatever it does afterwards."""
    entry, key = record.ranks[rank], snapshot_key(record.secret)
    with (
        contextlib.suppress(OSError, ChannelError),
        socket.create_connection((entry.address, entry.door), timeout=CONNECT_SECONDS) as connection,
    ):
        greet(connection, key, rank, rank, CONNECT_SECONDS)
        return True
    return False
