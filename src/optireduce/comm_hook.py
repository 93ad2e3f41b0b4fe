"""``attach``: DDP gradients through the engine, on top of whatever backend the process group has.

No ``from __future__ import annotations`` here: torch compares the hook's annotations with classes, not with
text.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from .attach_checks import check_arguments, other_collectives
from .communicator import Handle, start_all_reduce
from .completion import CompletionPool
from .config import Config
from .dtypes import DTYPES, OPS, Op
from .errors import ClosedError, ConnectError, OptiReduceError, RankLostError
from .hadamard import Encoded, is_on
from .membership import MembershipCallback
from .process_group import TORCH_DTYPES, close_transport
from .rendezvous import store_host
from .report import StepReport, step_report
from .safeguard import Safeguard
from .streams import Layout, Streams
from .transport import Operation, Transport
from .wire import IdleBuffers, Lost
from .work import future_of

_DEFAULT_TIMEOUT_SECONDS = 1_800.0  # torch's own default, for groups that do not tell theirs
_logger = logging.getLogger("optireduce")
_SEVERAL = "several attached models share the process group"
_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()  # those of this process


def attach(
    ddp_model: DistributedDataParallel,
    config: Config | None = None,
    process_group: dist.ProcessGroup | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> "Session":
    """Average the gradients of ``ddp_model`` in an engine of its own; everything else stays with its process
    group.

    Collective: call it on every rank, once for each model, before the first backward pass. The group (the
    model's by default; Gloo, NCCL or optireduce) is used to find the other ranks.

    Gradients have a deadline (``Config.bounded``). A contribution that arrives later is added to the next
    step of the same rank, and all ranks always get the same gradients, bit by bit. Gradients are exact in the
    first step, in the first step after DDP has rebuilt its buckets, with ``find_unused_parameters``, under
    ``join()``, in a grid, and for float64.

    With the ``optimizer`` that trains the model, steps that exclude too much are skipped on all ranks
    (``Config.skip_above``), and ``optimizer.step()`` after a failed backward pass raises the original error.

    Buckets on a GPU are copied to the CPU and back, which waits for the GPU; this path has not been run on
    hardware.
    """
    optimizer = check_arguments(ddp_model, config, process_group, optimizer)
    group = process_group or ddp_model.process_group
    session = Session(group, config or Config.from_env(), ddp_model, optimizer)
    ddp_model.register_comm_hook(session, average_bucket)
    return session


class Session:
    """The gradient exchange of one DDP model; made by :func:`attach`."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        config: Config,
        model: DistributedDataParallel,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        exchange = _GroupExchange(group)
        self._group_name = str(group.group_name)
        self.rank = exchange.rank
        self.size = exchange.size
        self._waits_for_all: list[str] = []
        others = [known for known in _sessions if known.is_open and known._group_name == self._group_name]
        self._note_fixed(*other_collectives(model), *([_SEVERAL] if others else []))
        self._config = config
        self._transport = Transport(
            exchange,
            config,
            _timeout_of(group),
            store_host(_store_of(group)),
            fixed_membership=self.fixed_membership,
        )
        self._pool = CompletionPool()
        self._finalizer = weakref.finalize(self, close_transport, self._transport, self._pool)  # also at exit
        self._lock = threading.Lock()
        self._steps = 0
        self._step = _OpenStep(0)
        self._last_step: StepReport | None = None
        self._verdict: tuple[int, bool] = (-1, True)  # of the newest step that was judged
        self._safeguard = Safeguard(config.skip_above, config.halt_after)
        self._scaler: Any = None
        # The model's reducer holds this session, out of the garbage collector's sight: no cycles here.
        self._model = weakref.ref(model)
        self._exact = model.find_unused_parameters
        self._stays_readable = not model.gradient_as_bucket_view
        self._released = False
        self._streams = Streams(self._transport.engine)
        self._hadamard = is_on(config, optimizer)
        self._encodings = 0
        self._idle = IdleBuffers()
        if optimizer is not None:
            hook = optimizer.register_step_pre_hook(_calls(weakref.ref(self), Session._before_optimizer_step))
            weakref.finalize(self, hook.remove)
        early = model.register_forward_pre_hook(_calls(weakref.ref(self), Session._before_forward))
        weakref.finalize(self, early.remove)
        for other in others:
            other._note_fixed(_SEVERAL)
        _sessions.add(self)

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self._finalizer.alive

    @property
    def last_step(self) -> StepReport | None:
        """The newest training step whose gradients have all arrived; None before the first."""
        return self._last_step

    @property
    def error(self) -> OptiReduceError | None:
        """Why the newest backward pass failed. ``backward()`` itself raises a plain RuntimeError with this
        text, because torch does not keep the class of errors in futures."""
        return next((operation.error for operation in self._step.operations if operation.error), None)

    @property
    def fixed_membership(self) -> bool:
        """Whether training ends without a silent rank instead of going on, because the loop makes
        collectives outside this session. The log says which. Collectives that are found only after attach()
        (``join()``, a second attached model) wait for a rank that this session has removed."""
        return bool(self._waits_for_all)

    def stats(self) -> dict[str, Any]:
        """Counters of the engine since attach(), and what the safeguards did."""
        return self._transport.stats() | {
            "skipped_steps": self._safeguard.skipped_steps,
            "hadamard": self._hadamard,
        }

    def keep(self, scaler: Any) -> None:
        """Tell the session the GradScaler of the loop. Residuals are then rescaled when the scale changes."""
        if not callable(getattr(scaler, "get_scale", None)):
            raise TypeError(f"scaler is a {type(scaler).__name__}: it must be a torch.amp.GradScaler")
        self._scaler = scaler

    def should_step(self) -> bool:
        """Whether to call ``optimizer.step()`` after this backward pass: False, on all ranks, if it excluded
        more than ``skip_above``. Raises TrainingHaltedError after ``halt_after`` such steps in a row, and the
        original error if the backward pass failed.

        For loops that did not give attach() their optimizer: call it after every backward pass.
        """
        self._require_open()
        if (error := self.error) is not None:
            raise error
        step = self._last_step
        if step is not None and step.step != self._verdict[0]:
            self._verdict = (step.step, self._safeguard.may_step(step, self._missing_share(step)))
        return self._verdict[1]

    def flush(self, optimizer: torch.optim.Optimizer | None = None) -> bool:
        """Replace the gradients by the mean of the residuals that are left on all ranks: contributions that
        were excluded from their own step and have not been applied since. For the end of training::

            if session.flush():
                optimizer.step()

        With an ``optimizer`` it takes this step itself and clears the gradients. Then the gradients of every
        backward pass have been applied exactly once. False: no rank had a residual, the gradients are zero,
        and there is no step to take. Gradients are not scaled by a GradScaler: call the optimizer's own
        ``step``.

        Collective and exact: call it on every rank, between two steps.
        """
        self._require_open()
        model = self._require_model()
        means = self._means_of_residuals()
        self._verdict = (self._steps - 1, True)  # an optimizer step that follows is not one of training
        parameters = list(model.parameters())
        for layout, mean in means:
            for place in layout.places:
                parameter = parameters[place.position]
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter, requires_grad=False)
                parameter.grad.detach().copy_(place.of(mean))
        is_any = any(bool(mean.any()) for _, mean in means)
        if optimizer is not None:
            if is_any:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return is_any

    def _means_of_residuals(self) -> list[tuple[Layout, torch.Tensor]]:
        """Of every stream. A rank that is lost meanwhile fails the same operations on all others: these are
        repeated without it."""
        means = []
        waiting = list(self._streams.take_all())
        while waiting:
            started = [(*each, each[1].clone()) for each in waiting]
            handles = [self.all_reduce_async(mean) for _, _, mean in started]
            waiting = []
            for (layout, residual, mean), handle in zip(started, handles, strict=True):
                try:
                    handle.wait()
                    means.append((layout, mean))
                except RankLostError:
                    waiting.append((layout, residual))
        return means

    def on_membership(self, callback: MembershipCallback) -> Callable[[], None]:
        """Call ``callback(MembershipEvent)`` whenever a rank is removed from the group, or returns. See
        :meth:`Communicator.on_membership`."""
        return self._transport.membership.register(callback)

    def all_reduce_async(self, buffer: torch.Tensor, op: Op = "mean", *, weight: int | None = None) -> Handle:
        """Start reducing a CPU tensor in place, exactly, between the model's own buckets. See
        :meth:`Communicator.all_reduce_async`."""
        self._require_open()
        return start_all_reduce(self._transport, buffer.detach(), op, weight)

    def close(self) -> None:
        """Leave the group. DDP cannot forget a hook, so the model's next backward pass raises ClosedError."""
        self._finalizer()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def average(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Start averaging one bucket; the future holds its buffer. Never waits."""
        self._require_open()
        buffer = bucket.buffer()
        if buffer.dtype not in TORCH_DTYPES:
            raise TypeError(
                f"gradients of dtype {buffer.dtype} are not supported: use one of {', '.join(DTYPES)}"
            )
        model = self._require_model()
        joins = model._join_config.enable
        if joins:
            self._note_fixed("join(), which also makes gradients exact")
        step = self._enter_step(bucket)
        layout, is_new = self._streams.enter(bucket, model)
        on_cpu = buffer.device.type == "cpu"
        host = buffer if on_cpu else buffer.cpu()
        if is_new:
            self._streams.add_moved(layout, host, step.scale)
        encoded = self._encoded(host)
        wire = host if encoded is None else encoded.wire

        def finish(lost: Lost) -> None:
            if encoded is not None:
                encoded.decode(lost)
            if not on_cpu:
                _copy_to_device(buffer, host)

        operation = self._transport.start(
            wire.data_ptr(),
            wire.numel(),
            TORCH_DTYPES[wire.dtype],
            OPS["mean"],
            bounded=not (is_new or joins or self._exact or buffer.dtype == torch.float64),
            narrow=True,
            stream=layout.stream,
            step=step.number,
            scale=step.scale,
            stays_readable=on_cpu and self._stays_readable and encoded is None and not joins,
            keep_alive=(host, encoded),
            finish=finish,
        )
        self._bucket_started(step, operation, bucket.is_last())
        return future_of(
            operation,
            buffer,
            self._pool,
            before=lambda: self._bucket_done(step),
            devices=None if on_cpu else [buffer.device],
        )

    def _encoded(self, host: torch.Tensor) -> Encoded | None:
        if not self._hadamard or host.dtype == torch.float64:
            return None
        self._encodings += 1
        seed = (self._transport.seed + self._encodings) % 2**64
        return Encoded(host.data_ptr(), host.numel(), TORCH_DTYPES[host.dtype], seed, self._idle)

    def _missing_share(self, step: StepReport) -> float:
        """The share that is not in a step's gradient, the same on all ranks. With best effort ranks lose
        different parts, so they exchange how much."""
        if self._config.delivery == "carry" or self._config.skip_above == 1.0:
            return step.excluded_share
        share = torch.tensor([step.loss_share])
        self.all_reduce_async(share).wait()
        return float(share)

    def _require_open(self) -> None:
        if not self.is_open:
            raise ClosedError("the session is closed; make a new DistributedDataParallel without attach()")

    def _require_model(self) -> DistributedDataParallel:
        if (model := self._model()) is None:
            raise ClosedError("the model of this session is gone")
        return model

    def _note_fixed(self, *reasons: str) -> None:
        new = [reason for reason in reasons if reason not in self._waits_for_all]
        self._waits_for_all += new
        if new and self.rank == 0:
            _logger.warning(
                "fixed membership: every step waits for all ranks, as with Gloo, because of collectives "
                "outside optireduce: %s",
                "; ".join(new),
            )

    def _enter_step(self, bucket: GradBucket) -> "_OpenStep":
        """Buckets come in the order of their index, so index 0 begins a step; an earlier one may have been
        given up."""
        if bucket.index() == 0:
            if not self._released:  # the loop calls model.forward(), which runs no hooks
                self._stays_readable = False
                self._transport.release()
            self._released = False
            scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
            self._streams.begin_step()
            self._step = _OpenStep(self._steps, scale)
        return self._step

    def _bucket_started(self, step: "_OpenStep", operation: Operation, is_last: bool) -> None:
        with self._lock:
            step.operations.append(operation)
            step.is_whole = is_last
            self._steps += is_last

    def _bucket_done(self, step: "_OpenStep") -> None:
        with self._lock:
            step.done += 1
            if step.is_whole and step.done == len(step.operations):
                reports = [operation.result() for operation in step.operations]
                self._last_step = step_report(step.number, reports, time.monotonic() - step.started_at)

    def _before_forward(self, model: DistributedDataParallel, _: object) -> None:
        """The next backward pass writes to the buckets."""
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._released = True
            self._transport.release()

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A step without gradients makes optimizers do nothing."""
        if not self.should_step():
            for parameter in self._require_model().parameters():
                parameter.grad = None


@dataclass
class _OpenStep:
    """A step whose buckets are still on their way."""

    number: int
    scale: float = 1.0
    started_at: float = field(default_factory=time.monotonic)
    operations: list[Operation] = field(default_factory=list)
    is_whole: bool = False  # the last bucket has been started
    done: int = 0


def average_bucket(state: Session, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The DDP communication hook; torch requires the name and the annotation of ``bucket``."""
    return state.average(bucket)


def _calls(session: "weakref.ref[Session]", method: Callable[..., None]) -> Callable[..., None]:
    """A hook on an object that may outlive the session."""

    def hook(*args: object) -> None:
        if (alive := session()) is not None and alive.is_open:
            method(alive, *args)

    return hook


def _copy_to_device(buffer: torch.Tensor, host: torch.Tensor) -> None:
    buffer.copy_(host)
    if buffer.device.type == "cuda":
        torch.cuda.synchronize(buffer.device)


def _timeout_of(group: dist.ProcessGroup) -> float:
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return float(options._timeout.total_seconds())
    return _DEFAULT_TIMEOUT_SECONDS


def _store_of(group: dist.ProcessGroup) -> object:
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):  # not every kind of group, nor every torch, has one
        return None


class _GroupExchange:
    """An Exchange over a process group that already works, bounded by that group's own timeout."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("attach() must be called only on ranks that belong to the process group")
        self._group = group

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        answers: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(answers, value, group=self._group)
        except RuntimeError as error:
            raise ConnectError(
                f"the ranks could not exchange their addresses over the process group: {error}"
            ) from error
        return answers
