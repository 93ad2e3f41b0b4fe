"""Every rank gives a few bytes and gets everybody's: what forming a group needs, over a store or over another
group."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from .errors import ConnectError, OptiReduceError
from .rendezvous import Store, TcpStore

# Ranks other than 0 wait a little longer, so that rank 0's account of who is missing still reaches them.
_GRACE_SECONDS = 2.0
# When one rank has used up the time, the others are still asked whether they are there already.
_GLANCE_SECONDS = 0.05
_NOTHING = b"null"  # as JSON


class Exchange(Protocol):
    """An all-gather of small JSON values; ``gather`` is called in the same order on every rank."""

    rank: int
    size: int

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        """Everybody's value, by rank; ConnectError names the ranks that did not come in time."""
        ...


def agree(exchange: Exchange, local: Callable[[], Any], timeout_seconds: float) -> list[Any]:
    """Gather ``local()`` of every rank; when it fails on any rank, fail on all of them, at once and with its
    text."""
    failure: Exception | None = None
    try:
        offer: dict[str, Any] = {"value": local()}
    except Exception as error:
        failure = error
        offer = {"error": f"{type(error).__name__}: {error}"}
    answers = exchange.gather(offer, timeout_seconds)
    if failure is not None:
        raise failure
    failed = [rank for rank, answer in enumerate(answers) if "error" in answer]
    if failed:
        texts = "; ".join(f"rank {rank}: {answers[rank]['error']}" for rank in failed)
        raise ConnectError(f"the group cannot form because of {texts}", failed)
    return [answer["value"] for answer in answers]


class StoreExchange:
    """Through a key-value store: rank 0 collects and publishes the whole, so a round costs 2N requests, not
    N*N."""

    def __init__(self, store: Store, rank: int, size: int, prefix: str) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._prefix = prefix
        self._round = 0

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        """See Exchange."""
        prefix = f"{self._prefix}/{self._round}"
        self._round += 1
        self._publish(f"{prefix}/{self.rank}", value)
        if self.rank == 0:
            collected = self._collect(prefix, timeout_seconds)
            if "values" in collected:
                self._forget_before(self._round - 1)
            self._publish(f"{prefix}/all", collected)
        try:
            answer = self._read(f"{prefix}/all", timeout_seconds + _GRACE_SECONDS)
        except _Missing:
            raise ConnectError(
                f"rank 0 did not come within {timeout_seconds:g} s; did it start?", [0]
            ) from None
        if missing := answer.get("missing"):
            names = ", ".join(map(str, missing))
            raise ConnectError(
                f"rank(s) {names} did not come within {timeout_seconds:g} s; did they start?", missing
            )
        return list(answer["values"])

    def _forget_before(self, index: int) -> None:
        """Whoever has come to a round has read the one before. It may hold the group's secret, which should
        not stay in a store that lives on."""
        if index > 0:
            for name in (self.rank, "all"):
                self._publish(f"{self._prefix}/{index - 1}/{name}", None)

    def leave(self, timeout_seconds: float) -> None:
        """Of a store that rank 0 serves: rank 0 returns when nobody needs it any more, so that it may stop;
        the others when it has, where the store can tell."""
        key = f"{self._prefix}/left/{self.rank}"
        if self.rank != 0 and isinstance(self._store, TcpStore):
            self._store.set_last(key, _NOTHING, timeout_seconds)
        else:
            self._publish(key, None)
        if self.rank == 0:
            self._collect(f"{self._prefix}/left", timeout_seconds)

    def _collect(self, prefix: str, timeout_seconds: float) -> dict[str, Any]:
        values, missing = [], []
        deadline = time.monotonic() + timeout_seconds
        for rank in range(self.size):
            try:
                left = max(deadline - time.monotonic(), _GLANCE_SECONDS)
                values.append(self._read(f"{prefix}/{rank}", left))
            except _Missing:
                missing.append(rank)
        return {"missing": missing} if missing else {"values": values}

    def _publish(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value).encode())

    def _read(self, key: str, timeout_seconds: float) -> Any:
        try:
            wait = getattr(self._store, "wait", None)
            if wait is not None:
                wait([key], timedelta(seconds=timeout_seconds))
            raw = self._store.get(key)
        except OptiReduceError:
            raise
        except (TimeoutError, RuntimeError) as error:  # torch's stores raise DistStoreError, a RuntimeError
            raise _Missing(key) from error
        try:
            return json.loads(raw)
        except ValueError:
            raise ConnectError(f"the store's value of {key!r} is not ours: {raw[:40]!r}") from None


class _Missing(Exception):  # noqa: N818 - internal signal
    """Nobody published the key in time."""
