"""What UDP over loopback can carry here when nothing is done with the data: the limit in the table.

One process sends 64 KB datagrams, another receives them. The sender never has more outstanding than the
receiver's buffer holds (every few datagrams a credit comes back), so nothing is dropped and every byte
counts.
"""

from __future__ import annotations

import os
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

from ..errors import CommandFailed
from ..ranks import process_context

DATAGRAM_BYTES = 65_000
_CREDIT_EVERY = 4  # datagrams
_MOST_OUTSTANDING = 16  # datagrams; more falls out of the cache and gains nothing
_BUFFER_BYTES = 4 << 20
_USABLE_SHARE = 0.75  # the kernel returns freed buffer space late, up to a quarter of it
_SPINS = 200  # polls with a yield before sleeping: waking a sleeping core costs as much as several datagrams
_PATIENCE_SECONDS = 5.0


def measure_flow(seconds: float) -> float:
    """Bytes per second of one flow between two processes that have a core each, measured for about `seconds`.

    Counted is the CPU time of the busier side, not the clock. On an idle machine they are the same; on a busy
    one the clock shows what other programs leave to two processes, which is not what they leave to n ranks.
    """
    ours, theirs = process_context().Pipe()
    receiver = process_context().Process(target=_receive, args=(theirs,), daemon=True)
    receiver.start()
    theirs.close()
    try:
        return _send(ours, seconds)
    except (TimeoutError, EOFError, OSError) as error:
        raise CommandFailed(
            f"the raw UDP measurement over loopback failed: {error or type(error).__name__}"
        ) from error
    finally:
        receiver.join(_PATIENCE_SECONDS)
        receiver.kill()


def _open_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(_PATIENCE_SECONDS)
    return sock


def _window(receive_buffer_bytes: int) -> int:
    """Datagrams that may be outstanding: what surely fits, in whole credits."""
    fitting = int(receive_buffer_bytes * _USABLE_SHARE) // (DATAGRAM_BYTES + 1024)
    return max(_CREDIT_EVERY, min(_MOST_OUTSTANDING, fitting) // _CREDIT_EVERY * _CREDIT_EVERY)


def _receive(pipe: Connection) -> None:
    with _open_socket() as sock:
        pipe.send((sock.getsockname(), sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)))
        sock.connect(pipe.recv())
        pipe.send("ready")
        buffer = bytearray(DATAGRAM_BYTES)
        received = 0
        start = time.process_time()
        while _recv_spinning(sock, buffer) == DATAGRAM_BYTES:  # the sender ends with an empty datagram
            received += 1
            if received % _CREDIT_EVERY == 0:
                sock.send(b"c")
        pipe.send(time.process_time() - start)


def _send(pipe: Connection, seconds: float) -> float:
    with _open_socket() as sock:
        address, receive_buffer_bytes = _from(pipe)
        sock.connect(address)
        pipe.send(sock.getsockname())
        _from(pipe)
        start = time.process_time()
        sent = _blast(sock, _window(receive_buffer_bytes), seconds)
        sender_seconds = time.process_time() - start
        sock.send(b"")
        receiver_seconds: float = _from(pipe)
        return sent * DATAGRAM_BYTES / max(sender_seconds, receiver_seconds)


def _from(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_SECONDS * 4):  # the first process of a run waits for the import of torch
        raise TimeoutError("the receiving process did not start")
    return pipe.recv()


def _blast(sock: socket.socket, window: int, seconds: float) -> int:
    """Send for so long, wait until all has arrived; returns the number of datagrams."""
    datagram, credit = bytes(DATAGRAM_BYTES), bytearray(1)
    sent = outstanding = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if outstanding + _CREDIT_EVERY > window:
            _recv_spinning(sock, credit)
            outstanding -= _CREDIT_EVERY
        for _ in range(_CREDIT_EVERY):
            sock.send(datagram)
        outstanding += _CREDIT_EVERY
        sent += _CREDIT_EVERY
    while outstanding:
        _recv_spinning(sock, credit)
        outstanding -= _CREDIT_EVERY
    return sent


def _recv_spinning(sock: socket.socket, buffer: bytearray) -> int:
    for _ in range(_SPINS):
        try:
            return sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    return sock.recv_into(buffer)
