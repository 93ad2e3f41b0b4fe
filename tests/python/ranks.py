"""How tests run several ranks at once, every wait bounded."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

from optireduce import Communicator, Config, Report
from optireduce.dtypes import DTYPES, OPS

# Limits end what hangs; none of them is short enough for a slow machine to meet it.
LIMIT_SECONDS = 200.0
# A rank that is through answers the others until they are, however late: a shorter linger would fail them.
LOOPBACK = Config(interface="lo", timeout_seconds=120.0, linger_seconds=30.0)


class MemoryStore:
    """A store for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=LIMIT_SECONDS))
        return self._values[key]

    def values(self) -> list[bytes]:
        """All that is stored now."""
        with self._changed:
            return list(self._values.values())

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(k in self._values for k in keys), timeout.total_seconds()
            ):
                raise TimeoutError(f"{keys} not there")


def free_port() -> int:
    """A TCP port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outcomes(size: int, body: Callable[[int], Any]) -> list[Any]:
    """What ``body(rank)`` returned or raised, for ranks that are threads."""
    results: list[Any] = [TimeoutError("the rank did not end")] * size

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results


def results(size: int, body: Callable[[int], Any]) -> list[Any]:
    """Like outcomes, for bodies that must not fail."""
    found = outcomes(size, body)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def group_outcomes(size: int, body: Callable[[Communicator], Any], config: Config = LOOPBACK) -> list[Any]:
    """What ``body(communicator)`` returned or raised on every rank of one group."""
    store = MemoryStore()

    def run(rank: int) -> Any:
        with Communicator(rank, size, store, config) as communicator:
            return body(communicator)

    return outcomes(size, run)


def group_results(size: int, body: Callable[[Communicator], Any], config: Config = LOOPBACK) -> list[Any]:
    """Like group_outcomes, for bodies that must not fail."""
    found = group_outcomes(size, body, config)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def narrow_mean(communicator: Communicator, values: Any) -> Report:
    """Average float32 in place in the form of ``Config.wire``, as gradients travel."""
    operation = communicator._transport.start(
        values.ctypes.data, values.size, DTYPES["float32"], OPS["mean"], narrow=True, keep_alive=values
    )
    operation.wait()
    return operation.result()


class ProcessPool:
    """Processes that run functions of test modules, as many ranks as asked for."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._stacks = tempfile.TemporaryDirectory()
        self._workers: list[tuple[Any, Any]] = []

    def run(
        self, size: int, function: Callable[..., Any], *args: Any, dying: Collection[int] = ()
    ) -> list[Any]:
        """``function(rank, size, *args)`` on every rank; failures are raised with their tracebacks.

        The processes of the ranks in ``dying`` must be killed by it: they have no result (None), and are
        replaced.
        """
        while len(self._workers) < size:
            self._workers.append(self._worker())
        self._prepare(size, function)
        for rank in range(size):
            self._workers[rank][1].send((rank, size, *args))
        deadline = time.monotonic() + LIMIT_SECONDS
        answers = [
            self._end(rank, deadline) if rank in dying else self._answer(rank, deadline)
            for rank in range(size)
        ]
        failed = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        if failed:
            self.close()  # in an unknown state
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join(5.0)
        self._workers.clear()

    def _worker(self) -> tuple[Any, Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._stacks.name), daemon=True)
        process.start()
        theirs.close()  # or its end would not be noticed
        return process, ours

    def _prepare(self, size: int, function: Callable[..., Any]) -> None:
        """Return when every rank has imported what it needs: a new process takes seconds longer than the
        others, which is for no test's own timeouts to bear."""
        for _, connection in self._workers[:size]:
            connection.send(function)
        deadline = time.monotonic() + LIMIT_SECONDS
        failed = [
            f"rank {rank}: {text}"
            for rank in range(size)
            for good, text in [self._answer(rank, deadline)]
            if not good
        ]
        if failed:
            self.close()
            raise AssertionError("\n".join(failed))

    def _end(self, rank: int, deadline: float) -> tuple[bool, Any]:
        process, connection = self._workers[rank]
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != -signal.SIGKILL:
            return False, f"was to be killed, exit code {process.exitcode}"
        connection.close()
        self._workers[rank] = self._worker()
        return True, None

    def _answer(self, rank: int, deadline: float) -> tuple[bool, Any]:
        connection = self._workers[rank][1]
        try:
            if connection.poll(max(0.0, deadline - time.monotonic())):
                good, value = connection.recv()
                return bool(good), value
        except EOFError:
            return False, f"the process died, exit code {self._workers[rank][0].exitcode}"
        return False, f"did not end within {LIMIT_SECONDS} s; it is here:\n{self._where(rank)}"

    def _where(self, rank: int) -> str:
        """Of all Python threads of a rank that hangs, whoever holds the interpreter's lock."""
        process = self._workers[rank][0]
        os.kill(process.pid, signal.SIGUSR1)
        path = Path(self._stacks.name) / str(process.pid)
        deadline = time.monotonic() + 5.0
        while not path.stat().st_size and time.monotonic() < deadline:
            process.join(0.05)
        return path.read_text() or "(no answer)"


def _serve(connection: Any, directory: str) -> None:
    with (Path(directory) / str(os.getpid())).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)
        _serve_calls(connection)
        faulthandler.unregister(signal.SIGUSR1)


def _serve_calls(connection: Any) -> None:
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            function = connection.recv()
            connection.send((True, None))
            args = connection.recv()
            try:
                connection.send((True, function(*args)))
            except BaseException:
                connection.send((False, traceback.format_exc()))
