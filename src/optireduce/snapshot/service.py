"""The TCP service of one session: it answers other ranks from its donor, and drops everybody else.

A stranger gets nothing but a closed connection. Connections, message sizes and times are bounded, and a
connection carries one request, so nothing that a stranger opens stays open.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .channel import Channel, ChannelError, answer_greeting
from .donor import Donor, Wanted
from .requests import (
    CONNECT_SECONDS,
    MESSAGE_SECONDS,
    MOST_REQUEST_BYTES,
    PATIENCE_SECONDS,
    receive_json,
    send_body,
)
from .state import memory_of

Answer = Callable[[int, dict[str, Any]], dict[str, Any]]
"""To a request of a rank; KeyError, TypeError or ValueError: it is none."""

_LOOK_SECONDS = 0.5  # between two looks at whether the session is closed
_JOIN_SECONDS = 5.0
_BREATH_SECONDS = 0.01
_CONNECTIONS_FOR_EACH_RANK = 4
_CONNECTIONS_FOR_STRANGERS = 16


class Service:
    """Listens from the beginning; :meth:`begin` answers."""

    def __init__(self, address: str, rank: int, size: int, donor: Donor) -> None:
        self._rank = rank
        self._size = size
        self._donor = donor
        self.answers: dict[str, Answer] = {}  # to requests that are not about snapshots
        self._key = b""
        self._listener = socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=size + 16
        )
        self._listener.settimeout(_LOOK_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self.refused = 0  # connections that did not prove the secret, or broke a limit
        self.sent_bytes = 0
        self._lock = threading.Lock()
        self._most = size * _CONNECTIONS_FOR_EACH_RANK + _CONNECTIONS_FOR_STRANGERS
        self._open: dict[threading.Thread, socket.socket] = {}
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._accept, name="optireduce-snapshot", daemon=True)

    def begin(self, key: bytes) -> None:
        """Answer ranks that know the key."""
        self._key = key
        self._thread.start()

    def close(self) -> None:
        """Return when all threads are gone. May be repeated. A forked child only lets go of its copy of the
        socket: to shut it down would end the parent's service, and the threads and locks are the parent's."""
        if os.getpid() != self._process:
            self._listener.close()
            return
        with self._lock:
            self._closed = True
            open_now = dict(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        self._listener.close()
        for thread, connection in open_now.items():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes its thread
            thread.join(_JOIN_SECONDS)

    def _accept(self) -> None:
        while not self._closed:
            self._donor.forget_old()
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # out of file descriptors, or a connection that ended in the queue
                time.sleep(_BREATH_SECONDS)
                continue
            self._serve_in_a_thread(connection)

    def _serve_in_a_thread(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="optireduce-snapshot-request", daemon=True
        )
        with self._lock:
            if self._closed or len(self._open) >= self._most:
                self.refused += not self._closed
                connection.close()
                return
            self._open[thread] = connection
            try:
                thread.start()
            except RuntimeError:  # no more threads: it asks again
                del self._open[thread]
                self.refused += 1
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                channel = self._greeted(connection)
                if channel is not None:
                    self._answer(channel)
        except (OSError, ChannelError):
            pass  # the peer went away, and asks again if it needs to
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _greeted(self, connection: socket.socket) -> Channel | None:
        try:
            channel = answer_greeting(connection, self._key, self._rank, CONNECT_SECONDS)
            if channel.peer >= self._size or channel.peer == self._rank:
                raise ChannelError("not another rank of the group")
            return channel
        except (OSError, ChannelError):
            with self._lock:
                self.refused += not self._closed
            return None

    def _answer(self, channel: Channel) -> None:
        try:
            request = receive_json(channel, MOST_REQUEST_BYTES, CONNECT_SECONDS)
            answer, body = self._answer_to(channel, request)
        except (ChannelError, KeyError, TypeError, ValueError):
            with self._lock:
                self.refused += 1
            return
        channel.send(json.dumps(answer).encode(), MESSAGE_SECONDS)
        if body is not None:
            send_body(channel, body)
            with self._lock:
                self.sent_bytes += len(body)

    def _answer_to(
        self, channel: Channel, request: dict[str, Any]
    ) -> tuple[dict[str, Any], memoryview | None]:
        donor, rank = self._donor, channel.peer
        kind = request["ask"]
        if kind in self.answers:
            return self.answers[kind](rank, request), None
        if kind == "step":
            return donor.status(), None
        if kind == "capture":
            return donor.ask(rank, _wanted(request)), None
        if kind == "ready":
            return donor.ready(rank), None
        if kind == "release":
            donor.release(rank)
            return {}, None
        if kind == "fetch":
            name, size = str(request["piece"]), int(request["bytes"])
            found = donor.piece(rank, name)
            if found is None or found[0].numel() != size:
                return {"gone": True}, None
            piece, rate = found
            if rate > 0:
                channel.pace(rate)
            return {"gone": False}, memory_of(piece)
        if kind == "values":
            values = donor.shelf.take(int(request["step"]), int(request["slice"]), PATIENCE_SECONDS)
            if values is None or values.numel() != int(request["bytes"]):
                return {"gone": True}, None
            return {"gone": False}, memory_of(values)
        raise ValueError(f"{kind!r} is no request")


def _wanted(request: dict[str, Any]) -> Wanted:
    wanted = Wanted(int(request["step"]), int(request["part"]), int(request["parts"]), bool(request["pause"]))
    if not 0 <= wanted.part < wanted.parts:
        raise ValueError("no such part")
    return wanted
