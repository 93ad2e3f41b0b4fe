"""The ``optireduce`` backend of torch.distributed: float SUM and AVG all-reduces run in the engine, all other
collectives in Gloo. All of them are exact, whatever their size, but for all-reduces that name a stream with
``Config(bounded="all")``.

Every method that C++ can call back is overridden here and handed to a plain C++ ProcessGroup around the same
Gloo backend, never to ``super()``: a fall-through would run Gloo's code with the GIL held, while a Gloo
worker that frees a tensor holds Gloo's lock and wants the GIL. That deadlocks DDP within minutes.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup, ProcessGroupGloo

from ._autoload import BACKEND
from .calls import CallOptions, Stream, options_in_scope
from .communicator import Handle, start_all_reduce
from .completion import CompletionPool
from .config import Config
from .dtypes import DTYPES, OPS, DType, Op
from .errors import ConfigError
from .exchange import StoreExchange
from .gloo_threads import let_them_rest
from .gloo_watch import GlooWatch
from .membership import MembershipCallback
from .rendezvous import store_host
from .transport import Transport
from .work import Work, backend_error

TORCH_DTYPES: dict[torch.dtype, DType] = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
_OPS = {dist.ReduceOp.SUM: OPS["sum"], dist.ReduceOp.AVG: OPS["mean"]}
_CPU = torch.device("cpu")

# C++ can call these back into Python. Both spellings of what torch 2.13 renamed; a torch has one or both.
_TRAMPOLINED = (
    "all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_into_tensor_coalesced",
    "allreduce_coalesced", "alltoall_base", "barrier", "broadcast", "recv", "reduce_scatter",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "send",
)  # fmt: skip
# Only Python calls these: C++ code goes to the backend.
_PYTHON_ONLY = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "allgather_coalesced", "alltoall",
    "gather", "recv_anysource", "reduce", "reduce_scatter_single", "scatter",
)  # fmt: skip


class OptiReduceGroup(ProcessGroup):
    """One group of ranks; made by init_process_group and new_group."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, config: Config) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] # the stub lacks this overload
        store = _of_this_attempt(store)
        exchange = StoreExchange(PrefixStore("engine", store), rank, size, "connect")
        self._transport = Transport(exchange, config, timeout.total_seconds(), store_host(store))
        self._pool = CompletionPool()
        # Runs at shutdown(), at interpreter exit, or when the group is collected, whatever comes first. The
        # engine goes first: that settles every operation, so the pool's threads come home.
        self._finalizer = weakref.finalize(self, close_transport, self._transport, self._pool)
        try:
            self._gloo = _gloo_backend(PrefixStore("gloo", store), rank, size, timeout, config)
        except BaseException:
            self._finalizer()
            raise
        self._exact = _plain_group(store, rank, size, self._gloo)
        self._watch = GlooWatch(self._transport, self._gloo)
        self._stop_watch = weakref.finalize(self, self._watch.stop)
        # Registered with ourselves too: C++ code without a way back into Python goes there directly.
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self._register_backend(_CPU, ProcessGroup.BackendType.CUSTOM, self._gloo)

    def allreduce(  # type: ignore[override] # three overloads in one
        self, tensors: Any, opts: Any = None, **others: Any
    ) -> dist.Work:
        """Called by Python and by C++ (DDP's reducer, functional collectives)."""
        if type(opts) is dist.AllreduceOptions and not others and len(tensors) == 1:
            op = _engine_op(tensors[0], opts)
            if op is not None:
                return self._start(tensors[0], op, opts.timeout.total_seconds())
        return self._watch.start(self._exact.allreduce, tensors, *(() if opts is None else (opts,)), **others)

    def _start(self, tensor: torch.Tensor, op: int, timeout_seconds: float) -> Work:
        if tensor.numel() == 0:
            return Work(None, [tensor], self._pool)
        flat, copy_back = contiguous_copy(tensor)
        try:
            operation = self._transport.start_call(
                flat.data_ptr(),
                flat.numel(),
                TORCH_DTYPES[flat.dtype],
                op,
                options_in_scope(self._transport),
                may_be_late=self._transport.config.bounded == "all",
                timeout_seconds=timeout_seconds if timeout_seconds > 0 else self._default_timeout(),
                keep_alive=(tensor, flat),
                finish=None if copy_back is None else lambda _: copy_back(),
            )
        except Exception as error:
            raise backend_error(error) from None
        return Work(operation, [tensor], self._pool)

    def _default_timeout(self) -> float:
        """The setting's, else the group's, which may have been changed since it was made."""
        configured = self._transport.config.timeout_seconds
        return configured if configured is not None else self._gloo.options._timeout.total_seconds()

    def stats(self) -> dict[str, Any]:
        """Counters of this group's engine."""
        return self._transport.stats()

    def all_reduce_async(
        self,
        buffer: torch.Tensor,
        op: Op = "mean",
        *,
        weight: int | None = None,
        stream: Stream | None = None,
        exact: bool = False,
        scale: float = 1.0,
    ) -> Handle:
        """Start reducing a CPU tensor in place, as Communicator.all_reduce_async does: torch's own
        all_reduce knows no weights and no streams (but see :func:`optireduce.stream`)."""
        options = CallOptions(weight, stream, exact, scale)
        return start_all_reduce(
            self._transport,
            buffer.detach(),
            op,
            options,
            may_be_late=self._transport.config.bounded == "all",
        )

    def on_membership(self, callback: MembershipCallback) -> Callable[[], None]:
        """See Communicator.on_membership."""
        return self._transport.membership.register(callback)

    def shutdown(self) -> None:
        """Called by destroy_process_group."""
        self._finalizer()
        self._stop_watch()
        self._exact.shutdown()
        let_them_rest()

    def abort(self) -> None:
        """Fail what is in flight and free everything."""
        self._finalizer()
        self._stop_watch()
        self._exact.abort()
        let_them_rest()

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """What get_backend() says."""
        return BACKEND

    def get_group_store(self) -> Store:
        """The store this group was made with."""
        return self._exact.get_group_store()

    def _get_sequence_number_for_group(self) -> int:
        number = self._exact._get_sequence_number_for_group()  # type: ignore[attr-defined] # missing in the stub
        return int(number)


def _delegate(name: str) -> Callable[..., Any]:
    def call(self: OptiReduceGroup, *args: Any, **kwargs: Any) -> Any:
        return self._watch.start(getattr(self._exact, name), *args, **kwargs)

    call.__name__ = name
    call.__doc__ = f"``ProcessGroup.{name}`` of the Gloo group inside."
    return call


for _name in _TRAMPOLINED + _PYTHON_ONLY:
    if hasattr(ProcessGroup, _name):
        setattr(OptiReduceGroup, _name, _delegate(_name))


def create(options: Any, pg_options: Any) -> OptiReduceGroup:
    """Make the group torch asks for; ``pg_options`` is a Config, or None to read the environment."""
    if pg_options is not None and not isinstance(pg_options, Config):
        raise ConfigError(
            f"pg_options is a {type(pg_options).__name__}: it must be an optireduce.Config or None"
        )
    config = pg_options or Config.from_env()
    try:
        return OptiReduceGroup(options.store, options.group_rank, options.group_size, options.timeout, config)
    except Exception as error:
        raise backend_error(error) from error.__cause__


def stats(group: ProcessGroup | None = None) -> dict[str, Any]:
    """Counters of a group on the ``optireduce`` backend, by default the whole world's."""
    return _our_group(group, "stats").stats()


def on_membership(callback: MembershipCallback, group: ProcessGroup | None = None) -> Callable[[], None]:
    """Call ``callback(MembershipEvent)`` whenever a rank of a group on the ``optireduce`` backend is
    removed, or returns. See :meth:`Communicator.on_membership`."""
    return _our_group(group, "on_membership").on_membership(callback)


def _our_group(group: ProcessGroup | None, function: str) -> OptiReduceGroup:
    group = group or dist.group.WORLD
    if not isinstance(group, OptiReduceGroup):
        kind = "there is no process group" if group is None else f"the group's backend is {group.name()}"
        raise TypeError(
            f"{kind}: {function}() needs a group made with backend 'optireduce' (or use Session.{function}())"
        )
    return group


def contiguous_copy(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """The tensor itself, or a contiguous copy and how to bring the result back. Ranks may differ in this."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor, None
    copy = tensor.contiguous()

    def copy_back() -> None:
        tensor.copy_(copy)

    return copy, copy_back


def _engine_op(tensor: torch.Tensor, opts: dist.AllreduceOptions) -> int | None:
    """The engine's code for this all-reduce, or None for Gloo. Uses only what is the same on all ranks."""
    op = _OPS.get(opts.reduceOp.op)  # type: ignore[attr-defined]  # reduceOp equals nothing
    if op is None or tensor.dtype not in TORCH_DTYPES or tensor.layout is not torch.strided:
        return None
    if tensor.device != _CPU:
        raise ValueError(
            f"the tensor is on {tensor.device}: backend 'optireduce' reduces CPU tensors. Copy it to the "
            f"CPU, or use init_process_group('nccl') with optireduce.attach(ddp_model)"
        )
    return op


def _gloo_backend(store: Store, rank: int, size: int, timeout: timedelta, config: Config) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # missing in the stub
    options._timeout = timeout
    device = ProcessGroupGloo.create_device(interface=config.interface) if config.interface else None
    options._devices = [device or ProcessGroupGloo.create_default_device()]
    gloo = ProcessGroupGloo(store, rank, size, options)
    gloo._set_sequence_number_for_group()
    return gloo


def _plain_group(store: Store, rank: int, size: int, gloo: ProcessGroupGloo) -> ProcessGroup:
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(_CPU, ProcessGroup.BackendType.GLOO, gloo)
    return group


def _of_this_attempt(store: Store) -> Store:
    """torchrun on one node restarts ranks with the store of the attempt before, whose keys are still there:
    new ranks would wait at the ports of the old ones. Several nodes count their attempts each for itself."""
    if os.environ.get("GROUP_WORLD_SIZE") != "1":
        return store
    return PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def close_transport(transport: Transport, pool: CompletionPool) -> None:
    """How a process group or a session ends."""
    transport.close()
    pool.stop()
