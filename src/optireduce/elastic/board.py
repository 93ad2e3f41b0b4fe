"""The store of a job as a notice board. Requests are short, and none waits for a key, so that whoever asks
stays able to do something else. The board may be away for a while: its host may be restarted, too."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from ..errors import OptiReduceError
from ..rendezvous import Store, TcpStore
from .record import parsed

_REQUEST_SECONDS = 2.0
_GLANCE = timedelta(milliseconds=20)


class BoardAway(Exception):  # noqa: N818 - internal signal
    """The store does not answer now."""


def finished_key(session: str, rank: int) -> str:
    """Where a rank says that it has ended its training."""
    return f"{session}/finished/{rank}"


class Board:
    """Notices of one job, as JSON."""

    def __init__(self, store: Store, job_id: str) -> None:
        self.store = store
        self.job_id = job_id
        self.prefix = f"optireduce/elastic/{job_id}"

    def peek(self, key: str) -> Any:
        """What is published; None: nothing, or nothing that we wrote. BoardAway: nobody knows."""
        try:
            raw = self._peek(f"{self.prefix}/{key}")
        except _AWAY as error:
            raise BoardAway(str(error)) from error
        try:
            return None if raw is None else parsed(raw)
        except ValueError:
            return None

    def put(self, key: str, value: Any) -> None:
        """Publish it in place of what is there."""
        name, raw = f"{self.prefix}/{key}", json.dumps(value).encode()
        try:
            if isinstance(self.store, TcpStore):
                self.store.put(name, raw, _REQUEST_SECONDS)
            else:
                self.store.set(name, raw)
        except _AWAY as error:
            raise BoardAway(str(error)) from error

    def _peek(self, name: str) -> bytes | None:
        store: Any = self.store
        if isinstance(store, TcpStore):
            return store.peek(name, _REQUEST_SECONDS)
        if hasattr(store, "check"):  # torch's
            return bytes(store.get(name)) if store.check([name]) else None
        try:
            store.wait([name], _GLANCE)
        except TimeoutError:
            return None
        return bytes(store.get(name))


_AWAY = (OSError, OptiReduceError, RuntimeError)  # torch's stores raise RuntimeErrors
