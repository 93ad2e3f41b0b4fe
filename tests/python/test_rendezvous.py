"""Ranks must find each other, or learn who is missing; nothing a stranger sends may stop the store."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from ranks import LIMIT_SECONDS, MemoryStore, free_port, outcomes, results

from optireduce import ConnectError, TcpStore
from optireduce.exchange import StoreExchange, agree


@pytest.fixture
def store() -> Iterator[TcpStore]:
    served = TcpStore("127.0.0.1", 0, serve=True, timeout_seconds=100.0)
    yield served
    served.close()


def client(store: TcpStore, timeout: float = 100.0) -> TcpStore:
    return TcpStore(store.host, store.port, timeout_seconds=timeout)


def test_get_waits_for_set(store: TcpStore) -> None:
    asked = threading.Thread(target=lambda: found.append(client(store).get("key")))
    found: list[bytes] = []
    asked.start()
    store.set("key", b"value \x00\xff")
    asked.join(100.0)
    assert found == [b"value \x00\xff"]


def test_get_of_a_missing_key_times_out(store: TcpStore) -> None:
    with pytest.raises(TimeoutError, match="'nothing'"):
        client(store, timeout=0.1).get("nothing")
    with pytest.raises(TimeoutError):
        client(store).wait(["nothing"], timedelta(seconds=0.1))


def test_no_server() -> None:
    with pytest.raises(ConnectError, match="no store answers"):
        TcpStore("127.0.0.1", free_port(), timeout_seconds=0.1).get("key")


def test_bounds(store: TcpStore) -> None:
    with pytest.raises(ConnectError, match="key is too long: 600 bytes, at most 512"):
        store.set("k" * 600, b"")
    with pytest.raises(ConnectError, match="value is too long: 1048577 bytes, at most 1048576"):
        store.set("key", bytes((1 << 20) + 1))


def test_too_many_keys(store: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optireduce.rendezvous._MAX_KEYS", 2)
    store.set("a", b"")
    store.set("b", b"")
    with pytest.raises(ConnectError, match="too many keys"):
        store.set("c", b"")
    store.set("a", b"again")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"S",
        os.urandom(11),
        b"X" + bytes(10),
        struct.pack("!cIHI", b"S", 0, 65535, 2**32 - 1),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_bad_bytes_do_not_stop_the_store(store: TcpStore, garbage: bytes) -> None:
    # Errors are the stranger's: the store may hang up at once.
    with (
        contextlib.suppress(OSError),
        socket.create_connection((store.host, store.port), timeout=5.0) as stranger,
    ):
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1024):
            pass
    store.set("key", b"still here")
    assert client(store).get("key") == b"still here"


def test_every_rank_gets_all_values() -> None:
    store = MemoryStore()

    def body(rank: int) -> list[list[int]]:
        exchange = StoreExchange(store, rank, 3, "test")
        return [exchange.gather(rank * factor, 100.0) for factor in (1, 10)]

    assert results(3, body) == [[[0, 1, 2], [0, 10, 20]]] * 3


def test_missing_ranks_are_named_on_all_others() -> None:
    store = MemoryStore()
    # The two begin less than so far apart.
    found = outcomes(2, lambda rank: StoreExchange(store, rank, 4, "test").gather(None, 3.0))
    for error in found:
        assert isinstance(error, ConnectError)
        assert error.ranks == (2, 3)


def test_missing_rank_0_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optireduce.exchange._GRACE_SECONDS", 0.1)
    with pytest.raises(ConnectError, match="rank 0") as caught:
        StoreExchange(MemoryStore(), 1, 2, "test").gather(None, 0.1)
    assert caught.value.ranks == (0,)


def test_a_failure_on_one_rank_fails_all_at_once() -> None:
    store = MemoryStore()

    def local(rank: int) -> int:
        if rank == 1:
            raise ValueError("bad luck")
        return rank

    found = outcomes(3, lambda rank: agree(StoreExchange(store, rank, 3, "test"), lambda: local(rank), 60.0))
    assert isinstance(found[1], ValueError)
    for rank in (0, 2):
        assert isinstance(found[rank], ConnectError)
        assert "rank 1: ValueError: bad luck" in str(found[rank])
        assert found[rank].ranks == (1,)


def test_a_strangers_value_is_refused() -> None:
    store = MemoryStore()
    store.set("test/0/1", b"\xff\x00 not json")
    with pytest.raises(ConnectError, match="not ours"):
        StoreExchange(store, 0, 2, "test").gather(None, 1.0)


def test_rank_0_stays_until_all_others_have_left() -> None:
    """It serves the store: leaving early would cut off whoever still has to read the last answer."""
    store = MemoryStore()
    exchanges = [StoreExchange(store, rank, 2, "test") for rank in range(2)]
    returned = threading.Event()

    def leave() -> None:
        exchanges[0].leave(100.0)
        returned.set()

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    assert not returned.wait(0.2)
    exchanges[1].leave(100.0)
    assert returned.wait(100.0)


def test_who_publishes_last_waits_until_the_store_is_closed() -> None:
    served = TcpStore("127.0.0.1", 0, serve=True, timeout_seconds=100.0)
    returned = threading.Event()

    def leave() -> None:
        client(served).set_last("left", b"1", 100.0)
        returned.set()

    threading.Thread(target=leave, daemon=True).start()
    assert served.get("left") == b"1"
    assert not returned.wait(0.2)
    served.close()
    assert returned.wait(100.0)


def test_a_store_that_is_never_closed_is_not_waited_for_for_ever(store: TcpStore) -> None:
    client(store).set_last("left", b"1", 0.05)
    assert store.get("left") == b"1"


def test_a_store_is_looked_at_without_waiting() -> None:
    port = free_port()
    client = TcpStore("127.0.0.1", port)
    for ask in (lambda: client.peek("key", LIMIT_SECONDS), lambda: client.put("key", b"1", LIMIT_SECONDS)):
        with pytest.raises(ConnectError, match="no store answers"):
            ask()
    server = TcpStore("127.0.0.1", port, serve=True)
    assert client.peek("key", LIMIT_SECONDS) is None
    client.put("key", b"1", LIMIT_SECONDS)
    assert client.peek("key", LIMIT_SECONDS) == b"1"
    server.close()
