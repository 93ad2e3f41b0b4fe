"""One JSON object a line for every training step and every evaluation, for ``optireduce report``.

    log = TrainingLog("logs/run-{rank}.jsonl", rank)
    log.step(step, seconds, loss)
    log.held_out(step, loss)

Lines: ``{"kind": "step", "time", "rank", "step", "seconds", "loss"}`` and
``{"kind": "held_out", "time", "rank", "step", "loss"}``; ``time`` is when it ended, seconds since 1970. They
may share a file with other ranks' lines and with those of ``Config.operation_log``.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import SupportsFloat

_logger = logging.getLogger("optireduce")


class TrainingLog:
    """The log of one rank. Each line is with the kernel when the call returns: it outlives the process.

    Raises OSError when the file cannot be opened. A disk that fails later ends the log with a warning, not
    the training.
    """

    def __init__(self, path: str, rank: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path.replace("{rank}", str(rank))
        self._rank = rank
        self._clock = clock
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def step(self, step: int, seconds: float, loss: SupportsFloat | None = None) -> None:
        """A training step took so long on this rank. ``loss`` may be a tensor with one element."""
        self._write(kind="step", step=step, seconds=_finite(seconds), loss=_finite(loss))

    def held_out(self, step: int, loss: SupportsFloat, time: float | None = None) -> None:
        """After this step the loss on held-out data was this. ``time``: when the parameters were so, for
        those who evaluate later."""
        self._write(kind="held_out", time=time, step=step, loss=_finite(loss))

    def close(self) -> None:
        """Close the file; later lines are ignored. May be repeated."""
        self._file.close()

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, kind: str, time: float | None = None, **fields: float | None) -> None:
        if self._file.closed:
            return
        moment = self._clock() if time is None else time
        record = {"kind": kind, "time": moment, "rank": self._rank, **fields}
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            _logger.warning(
                "training log %s cannot be written (%s): steps are no longer logged", self._path, error
            )
            self.close()


def _finite(value: SupportsFloat | None) -> float | None:
    """JSON has no infinity and no NaN: such a number is null."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None
