"""A TCP connection between two ranks that have proved to each other that they know the group's secret.

Greeting:  client: magic, client's rank (u16), server's rank (u16), nonce (16 bytes)
           server: nonce (16), proof (32): HMAC-SHA256 of "server", the client's bytes and its own nonce
           client: proof (32): the same of "client"
Then messages: length (u32), payload, tag (16): a truncated HMAC-SHA256 under a key of this connection, over
the sender's role, the number of the message and the payload. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import time

MOST_MESSAGE_BYTES = 1 << 20

_MAGIC = b"ORSNAP1\n"
_NONCE_BYTES = 16
_TAG_BYTES = 16
_PROOF_BYTES = 32
_HELLO = struct.Struct(f"!8sHH{_NONCE_BYTES}s")
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python has no name for it
_UNPACED = 2**32 - 1


class ChannelError(Exception):
    """The other end did not keep to the protocol."""


def snapshot_key(secret: bytes) -> bytes:
    """Of a group; tells nothing about the secret."""
    return _mac(secret, b"optireduce snapshot")


class Channel:
    """Messages to and from one authenticated peer. Every call has a limit in time."""

    def __init__(self, connection: socket.socket, key: bytes, role: bytes, peer: int) -> None:
        self.peer = peer
        self._connection = connection
        with contextlib.suppress(OSError):  # a pair of sockets in a test is not TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._key = key
        self._role = role
        self._other = b"server" if role == b"client" else b"client"
        self._sent = 0
        self._received = 0

    def send(self, payload: bytes | memoryview, timeout_seconds: float) -> None:
        """One message, of at most MOST_MESSAGE_BYTES."""
        tag = self._tag(self._role, self._sent, payload)
        self._sent += 1
        self._connection.settimeout(timeout_seconds)
        self._connection.sendall(b"".join((_LENGTH.pack(len(payload)), payload, tag)))

    def receive(self, most: int, timeout_seconds: float) -> bytearray:
        """The next message; ChannelError: it has more bytes than ``most``, or another's tag."""
        deadline = time.monotonic() + timeout_seconds
        (length,) = _LENGTH.unpack(_receive(self._connection, _LENGTH.size, deadline))
        if length > most:
            raise ChannelError(f"a message of {length} bytes, at most {most} are expected")
        payload = _receive(self._connection, length, deadline)
        tag = _receive(self._connection, _TAG_BYTES, deadline)
        if not hmac.compare_digest(tag, self._tag(self._other, self._received, payload)):
            raise ChannelError("a message has a wrong tag")
        self._received += 1
        return payload

    def pace(self, bytes_per_second: float) -> None:
        """Send no faster, where the kernel can do that."""
        rate = min(int(bytes_per_second), _UNPACED)
        with contextlib.suppress(OSError):
            self._connection.setsockopt(
                socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate.to_bytes(4, "little", signed=False)
            )

    def _tag(self, role: bytes, number: int, payload: bytes | bytearray | memoryview) -> bytes:
        return _mac(self._key, role + _NUMBER.pack(number), payload)[:_TAG_BYTES]


def greet(connection: socket.socket, key: bytes, rank: int, server: int, timeout_seconds: float) -> Channel:
    """The client's part, which must know the rank of the server."""
    deadline = time.monotonic() + timeout_seconds
    hello = _HELLO.pack(_MAGIC, rank, server, secrets.token_bytes(_NONCE_BYTES))
    connection.settimeout(timeout_seconds)
    connection.sendall(hello)
    nonce = bytes(_receive(connection, _NONCE_BYTES, deadline))
    proof = _receive(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(key, b"server", hello, nonce)):
        raise ChannelError("the server does not know the group's secret")
    connection.sendall(_mac(key, b"client", hello, nonce))
    return Channel(connection, _mac(key, b"messages", hello, nonce), b"client", server)


def answer_greeting(connection: socket.socket, key: bytes, rank: int, timeout_seconds: float) -> Channel:
    """The server's part."""
    deadline = time.monotonic() + timeout_seconds
    hello = bytes(_receive(connection, _HELLO.size, deadline))
    magic, client, server, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or server != rank:
        raise ChannelError("not a greeting to this rank")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.settimeout(timeout_seconds)
    connection.sendall(nonce + _mac(key, b"server", hello, nonce))
    proof = _receive(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(key, b"client", hello, nonce)):
        raise ChannelError("the client does not know the group's secret")
    return Channel(connection, _mac(key, b"messages", hello, nonce), b"server", client)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytearray:
    """So many bytes before the deadline, however slowly they trickle in."""
    found = bytearray(length)
    view = memoryview(found)
    while view:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other end is too slow")
        connection.settimeout(left)
        count = connection.recv_into(view)
        if count == 0:
            raise ChannelError("the connection ended in the middle of a message")
        view = view[count:]
    return found


def _mac(key: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        mac.update(part)
    return mac.digest()
