"""``attach``: DDP gradients through the engine, on top of whatever backend the process group has.

No ``from __future__ import annotations`` here: torch compares the hook's annotations with classes, not with
text.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from .communicator import Handle, start_all_reduce
from .completion import CompletionPool
from .config import Config
from .dtypes import DTYPES, OPS, DType, Op
from .errors import ClosedError, ConnectError
from .hadamard import Encoded, Switch, WireBuffers, may_help
from .membership import MembershipCallback
from .process_group import TORCH_DTYPES
from .rendezvous import store_host
from .report import PeerLoss, Report, StepReport, lost_by_peer, step_report
from .resync import Resync
from .safeguard import Safeguard, Statement, Verdict
from .transport import Operation, Transport
from .warmup import slack_of
from .wire import Lost
from .work import future_of

_DEFAULT_TIMEOUT_SECONDS = 1_800.0  # torch's own default, for groups that do not tell theirs


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
    model's by default; Gloo, NCCL or optireduce) is used to find the other ranks. Works with ``no_sync``,
    ``find_unused_parameters``, ``static_graph`` and ``gradient_as_bucket_view``.

    With the ``optimizer`` that trains the model, replicas are kept together (``Config.resync_steps``), and
    steps that lost too much are skipped on all ranks (``Config.skip_above``): both hook into its ``step``.

    Buckets on a GPU are copied to the CPU and back, which waits for the GPU; this path has not been run on
    hardware.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise TypeError(f"ddp_model is a {type(ddp_model).__name__}: it must be a DistributedDataParallel")
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
        self._transport = Transport(exchange, config, _timeout_of(group), store_host(_store_of(group)))
        self._pool = CompletionPool()
        self._finalizer = weakref.finalize(
            self, _close, self._transport, self._pool
        )  # also at interpreter exit
        self.rank = self._transport.rank
        self.size = self._transport.size
        self._lock = threading.Lock()
        self._steps = 0
        self._encodings = 0
        self._wires = WireBuffers()
        self._step = _OpenStep(0)
        self._last_step: StepReport | None = None
        self._losses: dict[int, PeerLoss] = {}
        self._optimizer = optimizer
        late_repair = config.repair and config.late_repair
        resyncs = optimizer is not None and self.size > 1
        steps = config.resync_steps if resyncs else 0
        known = weakref.ref(model)  # its reducer holds this session, out of the garbage collector's sight
        replicas = Resync(self._transport, max(steps, 1), lambda: _kept_equal(known(), optimizer, config))
        self._replicas = replicas
        self._resync = replicas if steps else None  # a little in every step
        self._hadamard = Switch(config.hadamard, may_help(optimizer, late_repair, bool(steps)))
        self._safeguard = Safeguard(config.skip_above, config.halt_after)
        self._statement: Statement | None = None  # about the last step
        self._last_verdict: Verdict | None = None
        if optimizer is not None:
            hook = optimizer.register_step_pre_hook(_before_step(weakref.ref(self)))
            weakref.finalize(self, hook.remove)
        if self._resync is not None:
            early = model.register_forward_pre_hook(_before_forward(weakref.ref(self)))
            weakref.finalize(self, early.remove)

    @property
    def last_step(self) -> StepReport | None:
        """The newest training step whose gradients have all arrived; None before the first."""
        return self._last_step

    @property
    def last_verdict(self) -> Verdict | None:
        """What all ranks know about the last step that they agreed on: what it lost, on which ranks, and who
        sent infinities or NaNs. None without an optimizer or should_step()."""
        return self._last_verdict

    @property
    def drift(self) -> float | None:
        """How far this replica had drifted from the others, relative to the size of its parameters, when its
        parts were last replaced. None before all of them were once, or without an optimizer."""
        return None if self._resync is None else self._resync.drift

    def stats(self) -> dict[str, Any]:
        """Counters of the engine since attach(), and what the safeguards did."""
        return self._transport.stats() | {
            "drift": self.drift,
            "skipped_steps": self._safeguard.skipped_steps,
            "unknown_verdicts": self._safeguard.unknown_verdicts,
            "hadamard": self._hadamard.on,
        }

    def should_step(self) -> bool:
        """Whether to call ``optimizer.step()`` after this backward pass: False, on all ranks, if it lost more
        than ``skip_above``. Raises TrainingHaltedError after ``halt_after`` such steps in a row.

        For loops that did not give attach() their optimizer. Collective: call it once for each backward pass,
        on every rank.
        """
        self._require_open()
        if self._last_step is None:
            return True
        statement = self._statement or self._state(self._last_step)
        self._statement = None
        verdict = self._last_verdict = statement.verdict()
        self._hadamard.learn(verdict.lost)
        return self._safeguard.may_step(verdict, self._losses)

    def before_forward(self, model: DistributedDataParallel) -> None:
        """What attach() makes the model call first: with parameters that are final for this step, a part of
        them can travel while the step is computed."""
        leads_to_gradients = model.training and torch.is_grad_enabled() and model.require_backward_grad_sync
        if self._finalizer.alive and self._resync is not None and leads_to_gradients:
            with self._lock:
                self._resync.begin_early()

    def before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """What attach() makes the optimizer call first: replace a part of the parameters, and drop the
        gradients if this step is to be skipped, which makes optimizers do nothing."""
        if not self._finalizer.alive:
            return
        if self._resync is not None:
            self._resync.adopt()
        if self._statement is not None and not self.should_step():
            optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> bool:
        """Make all replicas equal now: each rank sends a part of the parameters and floating-point buffers,
        and all others adopt it. For what you want to keep or judge: before a checkpoint, before an
        evaluation, after the last step.

        Collective: call it on every rank, between two steps. It takes about half as long as a gradient in
        float32, and has ten times as long before its deadline. False: something did not come, such as the
        part of an absent rank, and keeps its value.
        """
        self._require_open()
        return self.size == 1 or self._replicas.everything()

    def on_membership(self, callback: MembershipCallback) -> Callable[[], None]:
        """Call ``callback(MembershipEvent)`` whenever a rank is no longer waited for, or is back. See
        :meth:`Communicator.on_membership`."""
        return self._transport.membership.register(callback)

    def all_reduce_async(self, buffer: torch.Tensor, op: Op = "mean", *, weight: int | None = None) -> Handle:
        """Start reducing a CPU tensor in place, between the model's own buckets. See
        :meth:`Communicator.all_reduce_async`."""
        self._require_open()
        return start_all_reduce(self._transport, buffer.detach(), op, weight)

    def close(self) -> None:
        """Leave the group. DDP cannot forget a hook, so the model's next backward pass raises ClosedError."""
        self._finalizer()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def average(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Start averaging one bucket; the future holds its buffer. Never waits."""
        self._require_open()
        step = self._step_of(bucket)
        buffer = bucket.buffer()
        if buffer.dtype not in TORCH_DTYPES:
            raise TypeError(
                f"gradients of dtype {buffer.dtype} are not supported: use one of {', '.join(DTYPES)}"
            )
        on_cpu = buffer.device.type == "cpu"
        host = buffer if on_cpu else buffer.cpu()
        copy_to_device = None if on_cpu else lambda: _copy_to_device(buffer, host)
        slack = slack_of(step.number, self._transport.config.warmup_steps)
        operation = self._start(host, bucket.index(), copy_to_device, slack)
        return future_of(
            operation,
            buffer,
            self._pool,
            before=lambda: self._bucket_done(step, operation),
            devices=None if on_cpu else [buffer.device],
        )

    def _start(
        self, host: torch.Tensor, bucket: int, then: Callable[[], None] | None, slack: float
    ) -> Operation:
        """A bucket as it is, or encoded."""
        dtype = TORCH_DTYPES[host.dtype]
        encoded = self._encoded(host, dtype, bucket)

        def finish(lost: Lost) -> None:
            if encoded is not None:
                encoded.decode(lost)
            if then is not None:
                then()

        return self._transport.start(
            (host if encoded is None else encoded.wire).data_ptr(),
            (host if encoded is None else encoded.wire).numel(),
            dtype if encoded is None else DTYPES["float32"],
            OPS["mean"],
            gradient=True,
            stream=bucket + 1 if encoded is None else 0,  # other signs each time: nothing can be added later
            slack=slack,
            keep_alive=(host, encoded),
            finish=None if encoded is None and then is None else finish,
        )

    def _encoded(self, host: torch.Tensor, dtype: DType, bucket: int) -> Encoded | None:
        if not self._hadamard.on or host.dtype == torch.float64:
            return None
        self._encodings += 1
        seed = (self._transport.seed + self._encodings) % 2**64
        wire = self._wires.get(bucket, host.numel())
        return Encoded(host.data_ptr(), host.numel(), dtype, seed, wire)

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise ClosedError("the session is closed; make a new DistributedDataParallel without attach()")

    def _step_of(self, bucket: GradBucket) -> "_OpenStep":
        """Buckets come in the order of their index, so index 0 begins a step; an earlier one may have been
        given up."""
        with self._lock:
            if bucket.index() == 0:
                self._step = _OpenStep(self._steps)
                if self._resync is not None:
                    self._resync.begin()
            step = self._step
            step.started_buckets += 1
            if bucket.is_last():
                step.complete_at = step.started_buckets
                self._steps += 1
            return step

    def _state(self, report: StepReport) -> Statement:
        return Statement(self._transport, report, self._losses, must_complete=self._hadamard.adapts)

    def _bucket_done(self, step: "_OpenStep", operation: Operation) -> None:
        with self._lock:
            step.reports.append(operation.result())
            if len(step.reports) != step.complete_at:
                return
            self._last_step = step.report()
            self._losses = lost_by_peer(step.reports)
            if self._optimizer is not None:
                self._statement = self._state(self._last_step)


@dataclass
class _OpenStep:
    """A step whose buckets are still on their way."""

    number: int
    started_at: float = field(default_factory=time.monotonic)
    started_buckets: int = 0
    complete_at: int = -1  # number of buckets, once the last one has been started
    reports: list[Report] = field(default_factory=list)

    def report(self) -> StepReport:
        return step_report(self.number, self.reports, time.monotonic() - self.started_at)


def average_bucket(state: Session, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The DDP communication hook; torch requires the name and the annotation of ``bucket``."""
    return state.average(bucket)


def _before_step(session: "weakref.ref[Session]") -> Callable[..., None]:
    """The optimizer outlives a session that nobody holds any more."""

    def hook(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if (alive := session()) is not None:
            alive.before_optimizer_step(optimizer)

    return hook


def _before_forward(session: "weakref.ref[Session]") -> Callable[..., None]:
    """The model may outlive it, too."""

    def hook(model: DistributedDataParallel, args: object) -> None:
        if (alive := session()) is not None:
            alive.before_forward(model)

    return hook


def _kept_equal(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None, config: Config
) -> Iterator[torch.Tensor]:
    """Parameters and buffers, and if asked for the optimizer's state, in the same order everywhere."""
    if model is None:
        raise ClosedError("the model of this session is gone: there is nothing to keep equal")
    yield from model.parameters()
    yield from (buffer for buffer in model.buffers() if buffer.is_floating_point())
    if optimizer is None or not config.resync_optimizer:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    yield value


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


def _close(transport: Transport, pool: CompletionPool) -> None:
    transport.close()
    pool.stop()
