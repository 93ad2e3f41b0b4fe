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
        self.processes: list[subprocess.Popen[bytes]] = []
        self._selector: selectors.BaseSelector | None = None  # while records() runs
        self._killed: set[int] = set()
        self._place, self._command, self._seats = place, [python, "-m", module], seats
        manager = PmiServer(len(seats)) if mpi else None
        for rank in range(len(seats)):
            variables, descriptor = ({}, None) if manager is None else manager.seat(rank)
            self.processes.append(self._started(rank, variables, descriptor))
        if manager is not None:
            manager.all_started()

    def kill(self, rank: int) -> None:
        """Its process, at once; that is no failure."""
        self._killed.add(rank)
        self.processes[rank].kill()

    def start_again(self, rank: int) -> None:
        """Another process in place of one that was killed. It has the gate to itself."""
        old = self.processes[rank]
        old.wait(_STOP_SECONDS)
        for pipe in (old.stdin, old.stdout):
            assert pipe is not None
            if self._selector is not None and pipe in self._selector.get_map():
                self._selector.unregister(pipe)
            pipe.close()
        self._buffers[rank] = b""
        self._killed.discard(rank)
        self.processes[rank] = self._started(rank)
        self._living.add(rank)
        if self._selector is not None:
            self._watch(self._selector, rank)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(_STOP_SECONDS)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
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
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            for rank in range(len(self.processes)):
                self._watch(selector, rank)
            heard = time.monotonic()
            while selector.get_map():
                for key, _ in selector.select(tick_seconds):
                    heard = time.monotonic()
                    read = os.read(key.fd, 1 << 16)
                    if read:
                        yield from self._lines(key.data, read, begin)
                    else:
                        selector.unregister(key.fileobj)
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
                if self._gate_closed and len(self._ready) == len(self.processes):
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
        if code != 0 and rank not in expected_dead and rank not in self._killed:
            said = self._errors_of(rank).read_text(errors="replace").splitlines()[-_ERROR_LINES:]
            raise RankFailed(f"rank {rank} ended with code {code}:\n" + "\n".join(said))

    def _started(
        self, rank: int, variables: dict[str, str] | None = None, descriptor: int | None = None
    ) -> subprocess.Popen[bytes]:
        with self._errors_of(rank).open("ab") as errors:
            return self._place.popen(
                rank,
                [*self._command, self._seats[rank]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | (variables or {}),
                pass_fds=() if descriptor is None else (descriptor,),
            )

    def _watch(self, selector: selectors.BaseSelector, rank: int) -> None:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        selector.register(pipe, selectors.EVENT_READ, rank)

    def _errors_of(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}"
