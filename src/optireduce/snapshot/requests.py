"""What ranks ask each other: one connection, one JSON request, one JSON answer, and bytes after it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .channel import MOST_MESSAGE_BYTES, Channel, ChannelError, greet

MOST_REQUEST_BYTES = 4_096
CONNECT_SECONDS = 5.0  # also for a greeting
MESSAGE_SECONDS = 30.0  # for one message, of at most a megabyte
PATIENCE_SECONDS = 1.0  # how long an answer to "ready" may wait for the capture


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """Nobody listens there any more: the session was closed, or its process has ended."""


@dataclass(frozen=True)
class Peers:
    """Where the services of a group listen."""

    rank: int
    """Our own."""
    key: bytes
    doors: dict[int, tuple[str, int]]
    """Address and port of every other rank that has a service."""
    has_finished: Callable[[int], bool] = lambda _: True
    """Whether a rank whose service is closed has finished; else its process may be started again."""

    def __repr__(self) -> str:  # the key is nobody's business
        return f"Peers(rank={self.rank}, doors={dict(self.doors)})"

    def move(self, peer: int, address: str, port: int) -> None:
        """A restarted process of a rank listens there."""
        self.doors[peer] = (address, port)

    def ask(self, peer: int, request: dict[str, Any], body: memoryview | None = None) -> dict[str, Any]:
        """The answer of a peer; with a ``body`` the bytes that follow fill it. Raises OSError, ChannelError
        or Refused."""
        try:
            connection = socket.create_connection(self.doors[peer], timeout=CONNECT_SECONDS)
        except ConnectionRefusedError as error:
            raise Refused(str(error)) from None
        with connection:
            channel = greet(connection, self.key, self.rank, peer, CONNECT_SECONDS)
            channel.send(json.dumps(request).encode(), MESSAGE_SECONDS)
            answer = receive_json(channel, MOST_MESSAGE_BYTES, MESSAGE_SECONDS + PATIENCE_SECONDS)
            if body is not None and not answer.get("gone"):
                _fill(channel, body)
            return answer


def receive_json(channel: Channel, most: int, timeout_seconds: float) -> dict[str, Any]:
    """The next message, which must be an object."""
    try:
        found = json.loads(channel.receive(most, timeout_seconds))
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a message is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ChannelError("a message is not an object")
    return found


def send_body(channel: Channel, body: memoryview) -> None:
    """Bytes after an answer."""
    for begin in range(0, len(body), MOST_MESSAGE_BYTES):
        channel.send(body[begin : begin + MOST_MESSAGE_BYTES], MESSAGE_SECONDS)


def _fill(channel: Channel, body: memoryview) -> None:
    begin = 0
    while begin < len(body):
        part = channel.receive(min(MOST_MESSAGE_BYTES, len(body) - begin), MESSAGE_SECONDS)
        if not part:
            raise ChannelError("an empty message")
        body[begin : begin + len(part)] = part
        begin += len(part)
