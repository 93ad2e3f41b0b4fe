"""Whom a rank believes, over real sockets: the test itself is rank 1, and seals its packets in Python."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ranks import LOOPBACK, MemoryStore, outcomes, results
from siphash_reference import siphash

from optireduce import Communicator, _core, connect
from optireduce.auth import SECRET_BYTES, effective_auth, new_secret
from optireduce.experiments.simulated_network import Hostile, Link, Network
from optireduce.experiments.simulation import Simulation

SECRET = bytes(range(SECRET_BYTES))
MTU = 1500
VERSION, CONTRIBUTION, DECISION, REQUEST, STATUS, PING, REJECT = 4, 1, 2, 3, 4, 5, 6
TYPES = range(1, 10)
ECHO = 8


def receiver_key(rank: int) -> bytes:
    """Of packets to one rank: docs/protocol.md."""
    halves = [siphash(SECRET, bytes([1, half, rank & 0xFF, rank >> 8])) for half in (0, 1)]
    return struct.pack("<2Q", *halves)


def packet(
    kind: int, timestamp: int, payload: bytes = b"", *, tag_error: int = 0, token: bool = False
) -> bytes:
    """Of rank 1 to rank 0, about operation 0 of 16 float32 (sum), with an echo of nothing that was sent."""
    header = struct.pack(
        "<BBHIIBBHIHHIIIBBBxIHxxQ",
        *(VERSION, kind, 1, 0, 16, 0, ECHO, len(payload), 0, 1 if kind == DECISION else 0),
        *(0, timestamp, 0, 0, 0, 0, 0, 0, 0, 1),
    )
    assert len(header) == 56
    tag = struct.unpack("<Q", SECRET[:8])[0] if token else siphash(receiver_key(0), header + payload)
    return header + struct.pack("<Q", tag ^ tag_error) + payload


def test_the_test_s_own_siphash_is_right() -> None:
    assert siphash(SECRET, b"") == 0x726FDB47DD0E0E31
    assert siphash(SECRET, bytes(range(15))) == 0xA129CA6149BE45E5  # the example of the paper
    assert siphash(SECRET, bytes(range(63))) == 0x958A324CEB064572


class Stranger:
    """Rank 0 of 2 is an engine; rank 1 is a socket of this test."""

    def __init__(self, auth: str = "mac") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(100.0)
        self.token = auth == "token"
        self.timestamp = 0
        self.engine = _core.Engine(0, 2, "127.0.0.1", auth, SECRET, _core.EngineOptions())
        self.engine.open(["127.0.0.1"] * 2, [0, self.socket.getsockname()[1]])
        self.socket.connect(("127.0.0.1", self.engine.ports[1]))

    def send(self, kind: int, payload: bytes = b"", *, tag_error: int = 0) -> None:
        """Everything is right but, perhaps, the tag."""
        self.timestamp += 1
        self.socket.send(packet(kind, self.timestamp, payload, tag_error=tag_error, token=self.token))

    def receive(self, kind: int) -> bytes:
        """The next packet of this type, skipping others."""
        while True:
            answer = self.socket.recv(2048)
            if answer[1] == kind:
                return answer

    def join(self) -> None:
        """Answer the engine's first ping: after it the engine knows us."""
        silent: list[list[int]] = []
        begins = threading.Thread(target=lambda: silent.append(self.engine.begin(MTU, [0, 1 << 20], 100.0)))
        begins.start()
        self.receive(PING)
        self.send(STATUS)
        begins.join()
        assert silent == [[]]

    def settled_stats(self) -> dict[str, int | float]:
        """Counters when all that was sent has been looked at: packets of one socket are read in order."""
        self.send(PING)
        self.receive(STATUS)
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close(0.0)
        self.socket.close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    yield made
    made.close()


def payload_of(kind: int) -> bytes:
    """What a packet of this type carries."""
    if kind in (CONTRIBUTION, DECISION):
        return np.ones(16, np.float32).tobytes()
    if kind == REQUEST:
        return struct.pack("<IB3x", 0, 2)
    return struct.pack("<BBHHBBIII", 2, 0, 1, 1, 0, 0, 16, 16, 0) if kind == REJECT else b""


def test_forged_packets_of_every_type_are_counted_and_change_nothing(stranger: Stranger) -> None:
    stranger.join()
    array = np.ones(16, np.float32)
    operation = stranger.engine.all_reduce(array.ctypes.data, 16, 0, 0, 60.0)
    before = stranger.settled_stats()
    for kind in TYPES:
        for bit in (0, 31, 63):
            stranger.send(kind, payload_of(kind), tag_error=1 << bit)
    after = stranger.settled_stats()
    assert after["forged_packets"] == before["forged_packets"] + 3 * len(TYPES)
    assert after["packets_received"] == before["packets_received"] + 1  # the ping
    for name in ("invalid_packets", "malformed_packets", "duplicate_packets", "failed_operations"):
        assert after[name] == 0, name
    assert stranger.engine.wait(operation, 0.0) is None
    stranger.send(REJECT, payload_of(REJECT))  # the same bytes under the right tag
    report = stranger.engine.wait(operation, 100.0)
    assert report is not None
    assert "gave up waiting for rank 1" in report.error


def test_a_stranger_without_the_key_is_never_heard() -> None:
    stranger = Stranger()
    try:
        for kind in TYPES:
            stranger.send(kind, payload_of(kind), tag_error=1)
        assert stranger.engine.begin(MTU, [0, 1 << 20], 0.3) == [1]
        limit = time.monotonic() + 60
        while stranger.engine.stats()["forged_packets"] < len(TYPES) and time.monotonic() < limit:
            time.sleep(0.01)  # the engine's thread may not have read all of them yet
        assert stranger.engine.stats()["forged_packets"] == len(TYPES)
    finally:
        stranger.close()


def test_with_a_token_there_are_no_tags() -> None:
    stranger = Stranger("token")
    try:
        stranger.join()
        before = stranger.settled_stats()
        stranger.send(STATUS, tag_error=1)
        assert stranger.settled_stats()["forged_packets"] == before["forged_packets"] + 1
    finally:
        stranger.close()


@pytest.mark.parametrize(
    ("auth", "secret", "message"),
    [("auto", SECRET, 'auth is "auto"'), ("mac", SECRET[:8], "has 8 bytes, must have 16")],
)
def test_the_core_names_what_it_cannot_use(auth: str, secret: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Engine(0, 1, "127.0.0.1", auth, secret, _core.EngineOptions())


@pytest.mark.parametrize("auth", ["mac", "token"])
def test_ranks_reduce_exactly_with_either(auth: Any) -> None:
    store = MemoryStore()
    config = replace(LOOPBACK, auth=auth, mtu=1500)

    def reduce(rank: int) -> tuple[bool, int]:
        with Communicator(rank, 3, store, config) as group:
            array = np.arange(100_003, dtype=np.float32) * (rank + 1)
            group.all_reduce(array, op="sum")
            return bool((array == np.arange(100_003, dtype=np.float32) * 6).all()), group.stats()[
                "forged_packets"
            ]

    assert results(3, reduce) == [(True, 0)] * 3


def test_auto_is_mac_between_hosts_and_token_on_one() -> None:
    assert effective_auth("auto", 1) == "token"
    assert effective_auth("auto", 2) == "mac"
    for auth in ("mac", "token"):
        assert {effective_auth(auth, hosts) for hosts in (1, 2)} == {auth}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("addresses", "expected"), [(["10.0.0.1"] * 2, "token"), (["10.0.0.1", "10.0.0.2"], "mac")]
)
def test_ranks_use_what_auto_means_for_their_addresses(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], expected: str
) -> None:
    given: list[tuple[int, str, bytes]] = []

    class Seen(Exception):  # noqa: N818 - not an error
        pass

    def engine(rank: int, size: int, address: str, auth: str, secret: bytes, options: Any, rows: Any) -> None:
        given.append((rank, auth, secret))
        raise Seen

    monkeypatch.setattr(connect, "Engine", engine)
    own = threading.local()
    monkeypatch.setattr(connect, "local_address", lambda interface, master: addresses[own.rank])
    store = MemoryStore()

    def join(rank: int) -> None:
        own.rank = rank
        Communicator(rank, 2, store, LOOPBACK)

    outcomes(2, join)
    assert sorted(auth for _, auth, _ in given) == [expected] * 2
    assert len({secret for _, _, secret in given}) == 1
    assert len(given[0][2]) == SECRET_BYTES


def test_no_secret_stays_in_the_store_or_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []

    def draw() -> bytes:
        drawn.append(new_secret())
        return drawn[-1]

    monkeypatch.setattr(connect, "new_secret", draw)
    store = MemoryStore()
    seen: list[bytes] = []
    publish = store.set
    monkeypatch.setattr(store, "set", lambda key, value: (seen.append(value), publish(key, value)))

    def look(rank: int) -> str:
        with Communicator(rank, 2, store, LOOPBACK) as group:
            return f"{group!r} {vars(group)!r} {group.stats()!r}"

    shown = " ".join(results(2, look))
    (secret,) = drawn
    assert any(secret.hex() in value.decode() for value in seen)  # it did travel through the store
    assert not any(secret.hex() in value.decode() for value in store.values())
    assert secret.hex() not in shown
    assert repr(secret)[2:-1] not in shown


def test_every_group_has_a_secret_of_its_own() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


def test_a_simulated_network_with_tags_sees_every_change() -> None:
    arrays = [np.arange(5_003, dtype=np.float32) + rank for rank in range(3)]
    simulation = Simulation(
        Network(3, auth="mac", link=Link(loss=0.02), hostile=Hostile(tamper=1.0, forge=0.5))
    )
    simulation.all_reduce(arrays)
    assert simulation.settle()
    for array in arrays:
        assert (array == np.arange(5_003, dtype=np.float32) * 3 + 3).all()
    assert (
        sum(simulation.stats(rank)["forged_packets"] for rank in range(3))
        == simulation.counters()["hostile"]
        > 0
    )


def test_a_change_on_the_way_needs_tags_to_be_seen() -> None:
    with pytest.raises(ValueError, match="tamper needs packets with tags"):
        Simulation(Network(2, hostile=Hostile(tamper=0.1)))
    with pytest.raises(ValueError, match='auth is "none"'):
        Simulation(Network(2, auth="none"))  # type: ignore[arg-type]
