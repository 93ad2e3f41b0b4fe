"""A tiny key-value store over TCP, so that ranks can find each other without torch.

Rank 0 serves; every rank sets keys and waits for others' keys. One connection carries one request, so that
nothing a stranger opens stays open: a request must arrive within a few seconds, sizes are bounded, and bad
bytes get an error answer. The store is not secret: it must run inside the trusted network, as torch's own
store does.

Request:  kind (1 byte, S, L or G), timeout in ms (u32), key length (u16), value length (u32), key, value
Answer:   status (1 byte), value length (u32), value
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
from datetime import timedelta
from typing import Any, Protocol

from .errors import ConfigError, ConnectError

_REQUEST = struct.Struct("!cIHI")
_ANSWER = struct.Struct("!BI")
_SET, _SET_LAST, _GET = b"S", b"L", b"G"
_OK, _TIMED_OUT, _REFUSED = range(3)

_MAX_KEY_BYTES = 512
_MAX_VALUE_BYTES = 1 << 20  # the joined answer of 64 ranks takes about 40 KiB
_MAX_KEYS = 1 << 16
_MAX_CONNECTIONS = 4_096
_MAX_WAIT_SECONDS = 3_600.0
_REQUEST_SECONDS = 5.0  # a peer that connects and then says nothing is dropped after this
_RETRY_SECONDS = 0.02  # between attempts while rank 0 is not listening yet


class Store(Protocol):
    """What is needed of a store; every torch.distributed Store has it.

    One that also has ``wait(keys, timeout)``, as torch's have, is never waited for without a limit.
    """

    def set(self, key: str, value: Any, /) -> Any:
        """Publish a value (bytes) under a key."""

    def get(self, key: str, /) -> bytes:
        """The value of a key, once somebody has published it."""
        ...


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``"host:port"``."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f'store = {text!r} is not usable: it must be "host:port", for example "10.0.0.1:29500"'
        )
    return host.strip("[]"), int(port)


def store_host(store: object) -> str:
    """The host that serves the store, as this rank names it; "" for stores that are not on one (a file,
    say)."""
    while (inner := getattr(store, "underlying_store", None)) is not None:  # torch's PrefixStore
        store = inner
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", ""))


class TcpStore:
    """A rank's access to the store at ``host:port``; with ``serve`` this process is also the one that holds
    it."""

    def __init__(self, host: str, port: int, *, serve: bool = False, timeout_seconds: float = 300.0) -> None:
        self.host = host
        self._timeout_seconds = timeout_seconds
        self._server = _Server(host, port) if serve else None
        self.port: int = self._server.server_address[1] if self._server else port

    def set(self, key: str, value: bytes, /) -> None:
        """Publish ``value``; a later value replaces it."""
        self._request(_SET, key, value, self._timeout_seconds)

    def set_last(self, key: str, value: bytes, timeout_seconds: float) -> None:
        """Publish ``value`` and wait until nobody serves the store any more, or for so long: who comes back
        to its address then finds the next one there, not this."""
        with contextlib.suppress(TimeoutError, ConnectError, OSError):  # its process may have ended
            self._request(_SET_LAST, key, value, timeout_seconds)

    def get(self, key: str, /) -> bytes:
        """The key's value, waiting for it; TimeoutError when nobody publishes it in time."""
        return self._request(_GET, key, b"", self._timeout_seconds)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when all keys are there; TimeoutError after ``timeout``."""
        deadline = time.monotonic() + timeout.total_seconds()
        for key in keys:
            self._request(_GET, key, b"", max(0.0, deadline - time.monotonic()))

    def peek(self, key: str, timeout_seconds: float) -> bytes | None:
        """The key's value, or None if nobody has published it. Waits only for the store, at most so long;
        OSError or ConnectError: it does not answer."""
        try:
            return self._request(_GET, key, b"", timeout_seconds, at_once=True)
        except _NotPublished:
            return None

    def put(self, key: str, value: bytes, timeout_seconds: float) -> None:
        """Like set(), if the store answers within so many seconds; OSError or ConnectError."""
        self._request(_SET, key, value, timeout_seconds, at_once=True)

    def close(self) -> None:
        """Stop serving. Others' requests fail from here on, and set_last() returns."""
        if self._server is not None:
            self._server.stop()

    def _request(self, kind: bytes, key: str, value: bytes, timeout: float, at_once: bool = False) -> bytes:
        """``at_once``: do not wait for a store that does not listen yet, nor for the key."""
        name = key.encode()
        _check_length("key", len(name), _MAX_KEY_BYTES)
        _check_length("value", len(value), _MAX_VALUE_BYTES)
        deadline = time.monotonic() + timeout
        with self._connect(deadline, at_once) as connection:
            connection.settimeout(timeout + _REQUEST_SECONDS)
            wait_ms = 0 if at_once else int(min(timeout, _MAX_WAIT_SECONDS) * 1000)
            connection.sendall(_REQUEST.pack(kind, wait_ms, len(name), len(value)) + name + value)
            status, length = _ANSWER.unpack(_receive(connection, _ANSWER.size))
            answer = _receive(connection, min(length, _MAX_VALUE_BYTES))
        if status == _TIMED_OUT:
            raise _NotPublished(f"nobody published {key!r} within {timeout:g} s")
        if status != _OK:
            raise ConnectError(
                f"the store at {self.host}:{self.port} refused {key!r}: {answer.decode(errors='replace')}"
            )
        return answer

    def _connect(self, deadline: float, at_once: bool) -> socket.socket:
        """Keep trying until the deadline, or try once: rank 0 may start last."""
        while True:
            left = max(deadline - time.monotonic(), 0.05)
            try:
                return socket.create_connection((self.host, self.port), timeout=left)
            except OSError as error:
                if at_once or time.monotonic() + _RETRY_SECONDS > deadline:
                    raise ConnectError(
                        f"no store answers at {self.host}:{self.port}: {error}", ranks=[0]
                    ) from None
                time.sleep(_RETRY_SECONDS)


class _NotPublished(TimeoutError):  # noqa: N818 - a TimeoutError to everybody else
    """The store answered that the key is not there."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Holds the keys; one short-lived thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__((host, port), _Request)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="optireduce-store", daemon=True
        )
        self._thread.start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._slots.acquire(blocking=False)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            super().finish_request(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its peer's affair; that peer gets no answer and reports it."""

    def put(self, key: bytes, value: bytes) -> bool:
        with self._changed:
            if key not in self._values and len(self._values) >= _MAX_KEYS:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def wait_for(self, key: bytes, timeout: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, min(timeout, _MAX_WAIT_SECONDS))
            return self._values.get(key)

    def wait_until_closed(self, timeout: float) -> bool:
        return self._closed.wait(min(timeout, _MAX_WAIT_SECONDS))

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._closed.set()
        self._thread.join(_REQUEST_SECONDS)


class _Request(socketserver.BaseRequestHandler):
    """Reads one request, answers it, and is done."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(_REQUEST_SECONDS)
        kind, wait_ms, key_length, value_length = _REQUEST.unpack(_receive(self.request, _REQUEST.size))
        if key_length > _MAX_KEY_BYTES or value_length > _MAX_VALUE_BYTES:
            return self._answer(_REFUSED, b"key or value too long")
        key = _receive(self.request, key_length)
        value = _receive(self.request, value_length)
        if kind in (_SET, _SET_LAST):
            if not self.server.put(key, value):
                return self._answer(_REFUSED, b"too many keys")
            over = kind == _SET or self.server.wait_until_closed(wait_ms / 1000)
            return self._answer(_OK if over else _TIMED_OUT, b"")
        if kind == _GET:
            found = self.server.wait_for(key, wait_ms / 1000)
            return self._answer(_TIMED_OUT, b"") if found is None else self._answer(_OK, found)
        return self._answer(_REFUSED, b"unknown request")

    def _answer(self, status: int, value: bytes) -> None:
        with contextlib.suppress(OSError):  # the asker went away
            self.request.sendall(_ANSWER.pack(status, len(value)) + value)


def _check_length(what: str, length: int, most: int) -> None:
    """Said before sending: a server that refuses may close while we still write, and its reason is lost."""
    if length > most:
        raise ConnectError(f"the store's {what} is too long: {length} bytes, at most {most} are allowed")


def _receive(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 65_536))
        if not part:
            raise ConnectError(f"the store's connection ended after {len(parts)} of {length} bytes")
        parts += part
    return bytes(parts)
