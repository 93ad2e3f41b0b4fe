"""What torch holds of an operation: a Work, and a future that fails as C++ expects.

Two habits of torch shape this. ``Future.set_exception`` from Python stores the exception as a *value*, which
C++ takes for success (DDP then casts it to a tensor and crashes), so errors are raised inside a ``then``
callback. And a Work made from a future swallows its errors in ``wait()``, so this is a Work of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .completion import CompletionPool
from .errors import ClosedError, OperationTimeout, PeerError
from .transport import Operation

T = TypeVar("T")


def future_of(
    operation: Operation,
    value: T,
    pool: CompletionPool,
    before: Callable[[], None] | None = None,
    devices: list[int | str | torch.device] | None = None,
    explain: Callable[[Exception], Exception | None] | None = None,
) -> torch.futures.Future[T]:
    """A future that holds ``value`` once the operation is done, or its error. ``before`` runs just before
    success. ``explain`` says which error the future gets instead of one; None: it holds ``value``, which then
    is no result."""
    source: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
    handed_out: torch.futures.Future[T] = source.then(_value_or_raise)

    def complete() -> None:
        source.set_result(_outcome(operation, value, before, explain))

    pool.submit(operation, complete)
    return handed_out


def _outcome(
    operation: Operation,
    value: T,
    before: Callable[[], None] | None,
    explain: Callable[[Exception], Exception | None] | None,
) -> T | BaseException:
    try:
        operation.result()
        if before is not None:
            before()
    except Exception as error:  # anything else would leave the future, and DDP, waiting for ever
        told = error if explain is None else explain(error)
        return value if told is None else backend_error(told)
    return value


def _value_or_raise(done: torch.futures.Future[Any]) -> Any:
    value = done.value()
    if isinstance(value, BaseException):
        raise value
    return value


class Work(dist.Work):
    """One all-reduce on the process group. ``operation`` is None for a tensor without elements, which is
    done."""

    def __init__(
        self, operation: Operation | None, tensors: list[torch.Tensor], pool: CompletionPool
    ) -> None:
        super().__init__()
        self._operation = operation
        self._tensors = tensors
        self._pool = pool
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait in the calling thread, which drives the engine; no completion thread is needed."""
        if self._operation is None:
            return True
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._operation.wait(seconds if seconds > 0 else None):
            number = self._operation.number
            raise backend_error(
                OperationTimeout(f"operation {number} is not done after {seconds:g} s; it goes on")
            )
        if self._operation.error is not None:
            raise backend_error(self._operation.error)
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors; from here on a completion thread waits for the operation."""
        if self._future is None:
            if self._operation is None:
                self._future = torch.futures.Future()
                self._future.set_result(self._tensors)
            else:
                self._future = future_of(self._operation, self._tensors, self._pool)
        return self._future

    def is_completed(self) -> bool:
        """Whether it is done, well or badly."""
        return self._operation is None or self._operation.poll(0.0)

    def is_success(self) -> bool:
        """Whether it is done and the result is there."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed, if it did."""
        if self._operation is None or self._operation.error is None:
            return None
        return backend_error(self._operation.error)

    def result(self) -> list[torch.Tensor]:
        """The tensors that are reduced in place."""
        return self._tensors

    def synchronize(self) -> None:
        """The same as wait()."""
        self.wait()


def backend_error(error: BaseException) -> BaseException:
    """The same error, which torch code can also catch as ``dist.DistBackendError``."""
    if not isinstance(error, (PeerError, ClosedError)) or isinstance(error, dist.DistBackendError):
        return error
    twin = _twin_class(type(error))(str(error))  # type: ignore[arg-type] # mypy: classes unhashable
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin


@cache
def _twin_class(kind: type[BaseException]) -> type[BaseException]:
    return type(
        kind.__name__, (kind, dist.DistBackendError), {"__module__": kind.__module__, "__doc__": kind.__doc__}
    )
