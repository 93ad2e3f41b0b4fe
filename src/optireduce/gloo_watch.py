"""Ends what waits inside Gloo for a rank that is gone.

Gloo waits for a silent rank until the timeout, which is 30 minutes, and its errors name a port. The engine
beside it asks ranks whether they live, whatever their processes do. So while a thread waits in Gloo for
longer than a moment, the engine looks for silent ranks; when one is found, the Gloo group is broken up, and
whoever waits gets an error that names the rank.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from .errors import PeerError, PeerLeftError, RankLostError
from .transport import Transport
from .work import backend_error

_LOOKS = 8  # within exact_silence_seconds
_POLL_SECONDS = 0.01
_TAG = 0x0D15EA5E  # of a message that nobody sends
_STOP_SECONDS = 5.0


class GlooWatch:
    """Watches over one Gloo group with the engine of the same ranks."""

    def __init__(self, transport: Transport, gloo: ProcessGroupGloo) -> None:
        self._transport = transport
        self._engine = transport.engine
        self._gloo = gloo
        self._others = [rank for rank in range(transport.size) if rank != transport.rank]
        self._silence_seconds = transport.config.exact_silence_seconds
        self._error: PeerError | None = None
        self._waits: dict[object, float] = {}  # since when, by who waits; changed without a lock
        self._engine_looks = False
        self._looking = threading.Lock()  # whoever has it tells the engine what to look for
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, collective: Callable[..., dist.Work], *args: Any, **kwargs: Any) -> GlooWork:
        """Begin a collective in Gloo; raises at once if a rank is lost."""
        if (known := self._error or self._transport.rank_lost) is not None:
            raise backend_error(known)
        try:
            return GlooWork(collective(*args, **kwargs), self)
        except RuntimeError as error:
            raise self.explained(error) from error

    def begin_wait(self) -> object:
        """Somebody waits from now on; end_wait() with what is returned ends that."""
        if self._thread is None:
            self._start_thread()
        waiter = object()
        self._waits[waiter] = time.monotonic()
        return waiter

    def end_wait(self, waiter: object) -> None:
        """See begin_wait."""
        del self._waits[waiter]

    def explained(self, error: RuntimeError) -> BaseException:
        """The error that names the rank, if ``error`` is Gloo's and a rank is gone; else ``error`` itself.

        Gloo learns at once that a connection is gone. Its rank must then answer the engine within a quarter
        of the usual time.
        """
        if not _is_about_a_connection(error):
            return error
        limit = self._silence_seconds / 4
        deadline = time.monotonic() + 2 * limit
        with self._looking:
            self._tell_engine(limit)
            while (found := self._error or self._lost() or self._left()) is None:
                if time.monotonic() > deadline or self._stopped.wait(_POLL_SECONDS):
                    break
            self._tell_engine(0.0)
        if found is None:
            return error
        self._break_up(found)
        return backend_error(found)

    def stop(self) -> None:
        """Return when the thread is gone. May be repeated."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _start_thread(self) -> None:
        with self._looking:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="optireduce-gloo-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._silence_seconds / _LOOKS):
            with self._looking:
                found = self._look()
            if found is not None:
                self._break_up(found)

    def _look(self) -> PeerError | None:
        """Short collectives are not looked at: to tell the engine would cost more than they do."""
        waited = time.monotonic() - min(list(self._waits.values()), default=time.monotonic())
        waits = waited >= self._silence_seconds / _LOOKS
        if waits or self._engine_looks:
            self._tell_engine(self._silence_seconds if waits else 0.0)
        if self._error is not None or not waits:
            return None
        # A rank that left may have sent all that is needed of it. Where it has not, Gloo says so itself.
        return self._lost()

    def _tell_engine(self, limit_seconds: float) -> None:
        self._engine.watch_outside(limit_seconds)
        self._engine_looks = limit_seconds > 0

    def _lost(self) -> PeerError | None:
        _, lost = self._engine.gone()
        if not lost:
            return None
        return RankLostError(
            f"{_names(lost)} was silent for too long. The group cannot go on without it: restart", lost
        )

    def _left(self) -> PeerError | None:
        left, _ = self._engine.gone()
        return PeerLeftError(f"{_names(left)} left the group before it was complete", left) if left else None

    def _break_up(self, error: PeerError) -> None:
        """End all that is in flight in Gloo, and keep the error for what comes later.

        torch 2.13 cannot abort a Gloo group. But a receive that is not answered in time makes Gloo close all
        connections of the group, which ends whatever waits for them.
        """
        self._error = self._error or error
        for rank in self._others:  # of those whose connections are closed already, none closes the others
            with contextlib.suppress(RuntimeError):
                work = self._gloo.recv([torch.zeros(1)], rank, _TAG)  # type: ignore[attr-defined] # not in the stub
                work.wait(timedelta(milliseconds=1))


class GlooWork(dist.Work):
    """A collective in Gloo that ends with an error when a rank is gone."""

    __slots__ = ("_future", "_watch", "_work")  # it is made for every collective, small ones too

    def __init__(self, work: dist.Work, watch: GlooWatch) -> None:
        super().__init__()
        self._work = work
        self._watch = watch
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait in the calling thread."""
        waiter = self._watch.begin_wait()
        try:
            return self._work.wait(timeout)
        except RuntimeError as error:
            raise self._watch.explained(error) from error
        finally:
            self._watch.end_wait(waiter)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors."""
        if self._future is None:
            waiter = self._watch.begin_wait()

            def outcome(done: torch.futures.Future[Any]) -> Any:
                self._watch.end_wait(waiter)
                try:
                    return done.value()
                except RuntimeError as error:
                    raise self._watch.explained(error) from error

            self._future = self._work.get_future().then(outcome)
        return self._future

    def is_completed(self) -> bool:
        """Whether it is done, well or badly."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it is done and the result is there."""
        return self._work.is_success()

    def exception(self) -> Any:
        """Why it failed, if it did, in Gloo's words."""
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._work.result()

    def synchronize(self) -> None:
        """Of CPU tensors there is nothing to do."""
        self._work.synchronize()

    def source_rank(self) -> int:
        """Of a receive from any rank."""
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _is_about_a_connection(error: RuntimeError) -> bool:
    text = str(error)
    return "gloo/transport" in text or "pair closure" in text


def _names(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
