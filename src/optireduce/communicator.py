"""All-reduce on NumPy arrays and DLPack CPU buffers, without torch."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from .buffers import as_buffer
from .calls import CallOptions, Stream
from .config import Config
from .dtypes import Op, op_code
from .errors import ClosedError, ConfigError, OperationTimeout, OptiReduceError
from .exchange import StoreExchange
from .membership import MembershipCallback
from .rendezvous import Store, TcpStore, parse_address, store_host
from .report import Report
from .transport import Operation, Transport

DEFAULT_TIMEOUT_SECONDS = 300.0
_LAST_WORDS_SECONDS = 2.0  # how long rank 0 serves its store for ranks that still read why there is no group


class Handle:
    """An all-reduce in flight. Its buffer must not be read or written before it is done."""

    def __init__(self, operation: Operation | None) -> None:
        self._operation = operation  # None: nothing to reduce

    def wait(self, timeout: float | None = None) -> Report:
        """The report, once the result is in the buffer.

        ``timeout``: stop waiting after so many seconds with OperationTimeout; the operation itself goes on
        and may be waited for again. None: until it is done or its own timeout has passed.
        """
        if self._operation is None:
            return Report(operation=-1, bytes=0, elapsed_seconds=0.0)
        if not self._operation.wait(timeout):
            raise OperationTimeout(
                f"operation {self._operation.number} is not done after {timeout} s; it goes on"
            )
        return self._operation.result()

    def done(self) -> bool:
        """Whether wait() would return at once, with a result or an error."""
        return self._operation is None or self._operation.poll(0.0)


def start_all_reduce(
    transport: Transport, buffer: Any, op: Op, options: CallOptions, *, may_be_late: bool
) -> Handle:
    """Start reducing a NumPy array or DLPack CPU tensor in place; see Communicator.all_reduce_async."""
    code = op_code(op)
    options.check(code)
    memory = as_buffer(buffer)
    copy_back = memory.copy_back
    if memory.elements == 0:
        return Handle(None)
    operation = transport.start_call(
        memory.pointer,
        memory.elements,
        memory.dtype,
        code,
        options,
        may_be_late=may_be_late,
        keep_alive=memory,
        finish=None if copy_back is None else lambda _: copy_back(),
    )
    return Handle(operation)


class Communicator:
    """One rank's end of a group that all-reduces in place.

    ``store`` is how the ranks find each other: ``"host:port"`` (rank 0 serves there for the time this
    constructor takes), or any object with ``set(key, bytes)`` and ``get(key) -> bytes``, a torch Store among
    them. Two groups on one store need two names.

    All ranks must call the same operations in the same order. A buffer with no elements returns at once and
    is no operation: it must then be empty on every rank.
    """

    _fixed_membership = True  # its operations are exact: they fail without a rank

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store | str | None = None,
        config: Config | None = None,
        *,
        name: str = "default",
    ) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigError(
                f"rank = {rank}, size = {size} is not usable: size must be >= 1 and 0 <= rank < size"
            )
        if store is None and size > 1:
            raise ConfigError(
                f'store = None is not usable with size = {size}: pass "host:port" or a store object'
            )
        config = config or Config.from_env()
        timeout = config.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        self.rank = rank
        self.size = size
        self._transport = _form_group(rank, size, store, config, timeout, name, self._fixed_membership)
        self._finalizer = weakref.finalize(self, self._transport.close)  # also at interpreter exit

    def all_reduce(
        self,
        buffer: Any,
        op: Op = "mean",
        *,
        weight: int | None = None,
        stream: Stream | None = None,
        exact: bool = False,
        scale: float = 1.0,
    ) -> Report:
        """Reduce ``buffer`` over all ranks, in place, and wait for it. See :meth:`all_reduce_async`."""
        return self.all_reduce_async(
            buffer, op, weight=weight, stream=stream, exact=exact, scale=scale
        ).wait()

    def all_reduce_async(
        self,
        buffer: Any,
        op: Op = "mean",
        *,
        weight: int | None = None,
        stream: Stream | None = None,
        exact: bool = False,
        scale: float = 1.0,
    ) -> Handle:
        """Start reducing ``buffer`` in place. Any number may be in flight. Without a ``stream`` the result is
        exact: it includes every rank, or the operation fails.

        With a ``weight``, from 0 to 65535, the buffer holds a sum over so many samples, and the mean is the
        sum of the buffers over the sum of the weights. A rank with weight 0 gives nothing and gets the result
        like all others.

        With a ``stream`` and ``Config(bounded="all")`` the call has a deadline. A contribution that arrives
        later is excluded, and added to the same rank's next call of this stream, together with its weight. A
        stream is a number from 1 or a name, the same on every rank. All its calls are on the same values:
        equally many, of one type, with one reduction. ``exact=True``: the call waits for every rank, and
        includes what is left of earlier calls of the stream. The last call should be exact; it may hold zeros
        (or have weight 0). ``scale``: the values are multiplied by it, as by a GradScaler; what is left of
        earlier calls is rescaled.

        The handle of a non-contiguous buffer must be waited for: its result is copied back then.
        """
        if not self._finalizer.alive:
            raise ClosedError("the communicator is closed")
        options = CallOptions(weight, stream, exact, scale)
        return start_all_reduce(
            self._transport, buffer, op, options, may_be_late=self._transport.config.bounded == "all"
        )

    def on_membership(self, callback: MembershipCallback) -> Callable[[], None]:
        """Call ``callback(MembershipEvent)`` whenever a rank is removed from the group, or returns.

        Events come when an operation ends, in the thread that waits for it, one at a time and in order: be
        short, and do not wait for futures. What the callback raises is logged and harms nothing. Call what is
        returned to stop.
        """
        return self._transport.membership.register(callback)

    def stats(self) -> dict[str, Any]:
        """Counters since the group formed: operations, bytes, repaired bytes, times."""
        return self._transport.stats()

    def close(self) -> None:
        """Leave the group; operations in flight fail with ClosedError. May be repeated."""
        self._finalizer()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _form_group(
    rank: int, size: int, store: Store | str | None, config: Config, timeout: float, name: str, fixed: bool
) -> Transport:
    if store is None:  # alone
        return Transport(_Alone(), config, timeout, "localhost")
    if not isinstance(store, str):
        exchange = StoreExchange(store, rank, size, f"optireduce/{name}")
        return Transport(exchange, config, timeout, store_host(store), fixed_membership=fixed)
    host, port = parse_address(store)
    own = TcpStore(host, port, serve=rank == 0, timeout_seconds=timeout)
    try:
        exchange = StoreExchange(own, rank, size, f"optireduce/{name}")
        try:
            transport = Transport(exchange, config, timeout, host, fixed_membership=fixed)
        except OptiReduceError:
            # The others fail for the same reason, but have to read it first.
            with contextlib.suppress(OptiReduceError, OSError):
                exchange.leave(_LAST_WORDS_SECONDS)
            raise
        exchange.leave(config.connect_timeout_seconds)
        return transport
    finally:
        own.close()


class _Alone:
    """The exchange of a group of one."""

    rank = 0
    size = 1

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        return [value]
