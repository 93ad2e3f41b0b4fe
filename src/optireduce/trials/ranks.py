"""The ranks of a run, one process on each host, and what they tell."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Any

from .places import Place
from .pmi import PmiServer

_SILENCE_SECONDS = 180.0
_STOP_SECONDS = 10.0
_END_SECONDS = 30.0  # an interpreter with torch takes its time on a busy machine
_ERROR_LINES = 15

Record = dict[str, Any]


class RankFailed(RuntimeError):  # noqa: N818 - reads as what happened
    """A rank ended early or fell silent; the text ends with what it said last."""


class Ranks:
    """``with Ranks(place, module, seats) as ranks: for told in ranks.records(): ...``

    Runs ``python -m module seat`` on each host; the module speaks through :class:`Voice`. ``mpi``: ranks can
    form an MPI world. ``python``: another interpreter than this process's.
    """

    def __init__(
        self,
        place: Place,
        module: str,
        seats: Sequence[str],
        *,
        mpi: bool = False,
        python: str = sys.executable,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="optireduce-ranks-")
        self._ready: set[int] = set()
        self._at_gate: set[int] = set()
        self._gate_closed = True
        self._buffers = [b""] * len(seats)
        self._living = set(range(len(seats)))
        self._place = place
        self._commands = [[python, "-m", module, seat] for seat in seats]
        self._selector = selectors.DefaultSelector()
        self.processes: list[subprocess.Popen[bytes]] = []
        manager = PmiServer(len(seats)) if mpi else None
        for rank in range(len(seats)):
            variables, descriptor = ({}, None) if manager is None else manager.seat(rank)
            self.processes.append(self._start(rank, variables, descriptor))
        if manager is not None:
            manager.all_started()

    def __enter__(self) -> Ranks:
        return self

    def restart(self, rank: int) -> None:
        """Start the program of a rank again, whose process was killed. It must not wait at gates that the
        others have passed."""
        old = self.processes[rank]
        old.kill()
        old.wait(_STOP_SECONDS)
        if old.stdout in {key.fileobj for key in self._selector.get_map().values()}:
            self._selector.unregister(old.stdout)
        _close_pipes(old)
        self._buffers[rank] = b""
        self._living.add(rank)
        self.processes[rank] = self._start(rank, {}, None)

    def _start(self, rank: int, variables: dict[str, str], descriptor: int | None) -> subprocess.Popen[bytes]:
        with self._errors_of(rank).open("ab") as errors:
            process: subprocess.Popen[bytes] = self._place.popen(
                rank,
                self._commands[rank],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | variables,
                pass_fds=() if descriptor is None else (descriptor,),
            )
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        self._selector.close()
        for process in self.processes:
            process.wait(_STOP_SECONDS)
            _close_pipes(process)
        self._folder.cleanup()

    def records(
        self,
        tick_seconds: float = 1.0,
        expected_dead: AbstractSet[int] = frozenset(),
        *,
        begin: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[int, Record] | None]:
        """What ranks tell, as it comes; None at least every ``tick_seconds``. Ends when all are done.

        ``begin`` is called when all ranks are ready. From then on ranks at the gate go on as soon as all are
        there.
        """
        heard = time.monotonic()
        while self._selector.get_map():
            for key, _ in self._selector.select(tick_seconds):
                heard = time.monotonic()
                read = os.read(key.fd, 1 << 16)
                if read:
                    yield from self._lines(key.data, read, begin)
                else:
                    self._selector.unregister(key.fileobj)
                    self._check_end(key.data, expected_dead)
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise RankFailed(f"no rank told anything for {_SILENCE_SECONDS:.0f} s")
            yield None

    def _lines(self, rank: int, read: bytes, begin: Callable[[], None]) -> Iterator[tuple[int, Record]]:
        *lines, self._buffers[rank] = (self._buffers[rank] + read).split(b"\n")
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "gate":
                self._at_gate.add(rank)
                self._let_pass()
                continue
            if record["kind"] == "ready":
                self._ready.add(rank)
                if len(self._ready) == len(self.processes):
                    begin()
                    self._gate_closed = False
                    self._let_pass()
            yield rank, record

    def _let_pass(self) -> None:
        if self._gate_closed or not self._at_gate or self._living - self._at_gate:
            return
        waiting, self._at_gate = self._at_gate, set()
        for rank in waiting & self._living:
            pipe = self.processes[rank].stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it died at the gate: its end is noticed next
                os.write(pipe.fileno(), b"g")

    def _check_end(self, rank: int, expected_dead: AbstractSet[int]) -> None:
        try:
            code = self.processes[rank].wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RankFailed(
                f"rank {rank} was through, but did not end within {_END_SECONDS:.0f} s"
            ) from None
        self._living.discard(rank)
        self._let_pass()
        if code != 0 and rank not in expected_dead:
            said = self._errors_of(rank).read_text(errors="replace").splitlines()[-_ERROR_LINES:]
            raise RankFailed(f"rank {rank} ended with code {code}:\n" + "\n".join(said))

    def _errors_of(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}"


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
