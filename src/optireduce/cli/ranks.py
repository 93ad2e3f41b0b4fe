"""Local ranks: n processes of one machine that report to the command through pipes.

Nothing here can hang: the parent waits on all pipes at once, and the kernel closes a dead process's pipe.
So a rank that dies, raises or falls silent ends the whole run, with an error that names it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import TracebackType
from typing import Any

from .errors import CommandFailed

# When one rank dies the others fail too, perhaps a moment earlier. So long we look for the one that began it.
_ROOT_CAUSE_SECONDS = 1.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Seat:
    """One rank's place in the run: who it is, where the ranks meet, and the way to talk to the command."""

    rank: int
    size: int
    rendezvous: str  # a file that does not exist yet: no port has to be chosen
    pipe: Connection

    def send(self, message: object) -> None:
        """Hand a picklable message to the command."""
        self.pipe.send(_Message(message))


@dataclass(frozen=True)
class _Message:
    content: object


@dataclass(frozen=True)
class _Failure:
    text: str


Target = Callable[..., None]  # called as target(seat, *arguments) in each rank


def process_context() -> ForkServerContext:
    """Ranks are forked from a server that has imported torch once: n imports at once take n times as long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    return context


def join_group(seat: Seat, backend: str, timeout: timedelta) -> None:
    """Called in a rank: form torch's default process group through the run's rendezvous file."""
    import torch.distributed as dist

    method = f"file://{seat.rendezvous}"
    dist.init_process_group(
        backend, init_method=method, rank=seat.rank, world_size=seat.size, timeout=timeout
    )


class LocalRanks:
    """`with LocalRanks(target, 4, args) as ranks: for message in ranks.messages(): ...`"""

    def __init__(self, target: Target, size: int, arguments: tuple[Any, ...]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="optireduce-")
        rendezvous = os.path.join(self._folder.name, "rendezvous")
        context = process_context()
        self.processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            seat = Seat(rank, size, rendezvous, theirs)
            process = context.Process(
                target=_run, args=(target, seat, arguments), daemon=True, name=f"rank{rank}"
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def messages(self, silence_seconds: float) -> Iterator[Any]:
        """What the ranks send, as it comes, until all have finished; raises CommandFailed when one cannot."""
        open_pipes = dict(zip(self._pipes, range(len(self._pipes)), strict=True))
        while open_pipes:
            ready = wait(list(open_pipes), timeout=silence_seconds)
            if not ready:
                raise CommandFailed(
                    f"ranks {list(open_pipes.values())} reported nothing for {silence_seconds:.0f} s"
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    received = pipe.recv()
                except EOFError:
                    self._check_exit(open_pipes.pop(pipe))
                    continue
                if isinstance(received, _Failure):
                    raise self._root_cause(open_pipes[pipe], received.text)
                yield received.content

    def _check_exit(self, rank: int) -> None:
        self.processes[rank].join(_STOP_SECONDS)
        code = self.processes[rank].exitcode
        if code is None:
            raise CommandFailed(
                f"rank {rank} closed its pipe but is still running after {_STOP_SECONDS:.0f} s"
            )
        if code != 0:
            raise CommandFailed(_describe_exit(rank, code))

    def _root_cause(self, rank: int, text: str) -> CommandFailed:
        """A rank that died without a word explains the errors of those that were connected to it."""
        deadline = time.monotonic() + _ROOT_CAUSE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            for other, process in enumerate(self.processes):
                if process.exitcode is not None and process.exitcode < 0:
                    return CommandFailed(_describe_exit(other, process.exitcode))
            wait(
                [process.sentinel for process in self.processes if process.exitcode is None],
                timeout=min(left, 0.05),
            )
        return CommandFailed(f"rank {rank} failed: {text}")


def _describe_exit(rank: int, code: int) -> str:
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    return f"rank {rank} exited with code {code}"


def _run(target: Target, seat: Seat, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    try:
        _use_loopback()
        target(seat, *arguments)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        seat.pipe.send(_Failure(f"{type(error).__name__}: {first_line}"))
    finally:
        seat.pipe.close()


def _end_with_the_command() -> None:
    """A command that was killed cannot stop its ranks, so they watch it."""
    command = multiprocessing.parent_process()
    assert command is not None
    wait([command.sentinel])
    os._exit(1)


def _use_loopback() -> None:
    """All ranks are on this machine; without this, backends may choose a real interface."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
