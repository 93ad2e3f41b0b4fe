"""``attach``: DDP gradients through the engine, on top of whatever backend the process group has.

No ``from __future__ import annotations`` here: torch compares the hook's annotations with classes, not with
text.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from .attach_checks import check_arguments, trains_all
from .attach_group import GroupMeeting, meeting_of
from .calls import CallOptions, Stream
from .check.compare import ParameterDifference
from .check.parameters import ParameterCheck
from .communicator import Handle, start_all_reduce
from .completion import CompletionPool
from .config import Config
from .dtypes import DTYPES, OPS, Op
from .errors import ClosedError, GroupFinished, OptiReduceError
from .flush import make_gradients, means_of_residuals
from .hadamard import Encoder
from .leave import Leaving
from .membership import MembershipCallback
from .process_group import TORCH_DTYPES, close_transport
from .report import StepReport
from .safeguard import Safeguard
from .snapshot.rejoin import Rejoin
from .steps import OpenStep, Steps
from .streams import Streams
from .transport import Transport
from .wire import Lost
from .work import future_of

if TYPE_CHECKING:
    from .elastic.group import ElasticGroup
    from .elastic.meeting import ElasticMeeting

T = TypeVar("T")

_SEVERAL = "several attached models share the process group"
_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()  # those of this process


def attach(
    ddp_model: DistributedDataParallel,
    config: Config | None = None,
    process_group: "dist.ProcessGroup | ElasticGroup | None" = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> "Session":
    """Average the gradients of ``ddp_model`` in an engine of its own; everything else stays with its process
    group.

    Collective: call it on every rank, once for each model, before the first backward pass. The group (the
    model's by default; Gloo, NCCL or optireduce) is used to find the other ranks. With an
    :class:`ElasticGroup`, a rank whose process is started again joins the others while they train.

    Gradients have a deadline (``Config.bounded``). A contribution that arrives later is added to the next
    step of the same rank, and all ranks always get the same gradients, bit by bit. Gradients are exact in the
    first step, in the first step after DDP has rebuilt its buckets, with ``find_unused_parameters``, under
    ``join()``, in groups of more than 64 ranks, and for float64.

    With the ``optimizer`` that trains the model, steps that exclude too much are skipped on all ranks
    (``Config.skip_above``), and ``optimizer.step()`` after a failed backward pass raises the original error.
    A rank that was silent for so long that it cannot replay what it missed can then return by a snapshot of
    the others' training state, if the loop uses ``session.batches`` or ``session.step``; give
    :meth:`Session.keep` your scheduler and GradScaler.

    Buckets on a GPU are copied to the CPU and back, which waits for the GPU; this path has not been run on
    hardware.
    """
    optimizer = check_arguments(ddp_model, config, process_group, optimizer)
    config = config or Config.from_env()
    session = Session(
        meeting_of(process_group or ddp_model.process_group, config), config, ddp_model, optimizer
    )
    ddp_model.register_comm_hook(session, average_bucket)
    return session


class Session:
    """The gradient exchange of one DDP model; made by :func:`attach`."""

    def __init__(
        self,
        meeting: "GroupMeeting | ElasticMeeting",
        config: Config,
        model: DistributedDataParallel,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._meeting = meeting
        self._group_name = meeting.name
        self.rank = meeting.rank
        self.size = meeting.size
        self._fixed = meeting.membership()
        others = [known for known in _sessions if known.is_open and known._group_name == self._group_name]
        self._fixed.note(*meeting.collectives(model), *([_SEVERAL] if others else []))
        self._config = config
        exchange = meeting.arrive()
        self._transport = Transport(
            exchange,
            config,
            meeting.timeout_seconds,
            meeting.master,
            fixed_membership=self.fixed_membership,
            connector=meeting.connector,
        )
        self._safeguard = Safeguard(config.skip_above, config.halt_after)
        try:
            trainer = optimizer if optimizer is not None and trains_all(model, optimizer) else None
            self._rejoin = Rejoin(self._transport, exchange, trainer, self._safeguard, self._fixed)
        except BaseException:
            self._transport.close()
            raise
        self._check = ParameterCheck(
            self._transport.engine,
            is_on=config.check_parameters and config.delivery == "carry" and self.size > 1,
            max_lag=config.max_lag,
            shelf=self._rejoin.shelf,
            peers=self._rejoin.peers,
            mender=self._rejoin.mender() if config.mend_differences else None,
        )
        self._streams = Streams(self._transport.engine)
        self._leaving = Leaving(self._transport, _values_of(self._streams, weakref.ref(model)))
        self._pool = CompletionPool()
        self._finalizer = weakref.finalize(
            self, _close, self._transport, self._pool, self._rejoin, self._check, self._leaving, meeting
        )  # also at exit
        self._steps = Steps()
        self._verdict: tuple[int, bool] = (-1, True)  # of the newest step that was judged
        self._scaler: Any = None
        # The model's reducer holds this session, out of the garbage collector's sight: no cycles here.
        self._model = weakref.ref(model)
        self._exact = model.find_unused_parameters
        self._stays_readable = not model.gradient_as_bucket_view
        self._released = False
        self._encoder = Encoder(config, optimizer, self._transport.seed)
        if optimizer is not None:
            hook = optimizer.register_step_pre_hook(_calls(weakref.ref(self), Session._before_optimizer_step))
            weakref.finalize(self, hook.remove)
        early = model.register_forward_pre_hook(_calls(weakref.ref(self), Session._before_forward))
        weakref.finalize(self, early.remove)
        for other in others:
            other._fixed.note(_SEVERAL)
        _sessions.add(self)
        try:
            meeting.begin(self, exchange, model)
        except BaseException:
            self._finalizer()
            raise

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self._finalizer.alive

    @property
    def last_step(self) -> StepReport | None:
        """The newest training step whose gradients have all arrived; None before the first."""
        return self._steps.last

    @property
    def step(self) -> int:
        """The group's training step: how many gradient exchanges were begun. It jumps when a snapshot brings
        this rank back."""
        self._rejoin.follow()
        return self._steps.number

    @property
    def error(self) -> OptiReduceError | None:
        """Why the newest backward pass failed. ``backward()`` itself raises a plain RuntimeError with this
        text, because torch does not keep the class of errors in futures."""
        return self._steps.open.error

    @property
    def fixed_membership(self) -> bool:
        """Whether training ends without a silent rank instead of going on, because the loop makes
        collectives outside this session. The log says which. Collectives that are found only after attach()
        (``join()``, a second attached model) wait for a rank that this session has removed."""
        return bool(self._fixed)

    @property
    def parameter_difference(self) -> ParameterDifference | None:
        """The newest difference between the parameters of ranks, which the log has told; None: they are
        equal, as far as was looked (``Config.check_parameters``)."""
        return self._check.difference

    def stats(self) -> dict[str, Any]:
        """Counters of the engine since attach(), and what the safeguards, snapshots and checks did."""
        return self._transport.stats() | {
            "skipped_steps": self._safeguard.skipped_steps,
            "hadamard": self._encoder.is_on,
            "discarded_steps": self._steps.discarded,
            **self._rejoin.stats(),
            **self._meeting.stats(),
            **self._check.stats(),
        }

    def keep(self, *objects: Any) -> None:
        """Tell the session what else the loop changes in every step: schedulers, the GradScaler, anything
        with ``state_dict`` and ``load_state_dict``. A rank that returns by a snapshot takes over their state,
        so it must be equal on all ranks. Give the same objects in the same order on every rank.

        With a GradScaler, residuals are rescaled when its scale changes.
        """
        self._rejoin.keep(objects)
        for each in objects:
            if callable(getattr(each, "get_scale", None)):
                self._scaler = each

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of ``loader``, without those of steps that a snapshot jumped over. The sampler then
        stays where the others' samplers are, also beyond the end of an epoch, if its order depends on
        ``set_epoch`` alone. The batch that was loaded before a jump is used. Whole epochs are skipped
        without loading them if the loader has a length. After a SIGTERM that asks this rank to leave they
        end between two steps. ::

            for batch in session.batches(loader):
                ...
        """
        self._rejoin.follow()
        return self._steps.batches(loader, self._leaves)

    def should_step(self) -> bool:
        """Whether to call ``optimizer.step()`` after this backward pass: False, on all ranks, if it excluded
        more than ``skip_above``. Raises TrainingHaltedError after ``halt_after`` such steps in a row, and the
        original error if the backward pass failed. Also False while this rank waits for a snapshot.

        For loops that did not give attach() their optimizer: call it after every backward pass.
        """
        self._require_open()
        if (error := self.error) is not None:
            raise error
        if self._steps.open.is_discarded:
            return False
        step = self._steps.last
        if step is not None and step.step != self._verdict[0]:
            self._verdict = (step.step, self._safeguard.may_step(step, self._missing_share(step)))
        return self._verdict[1]

    def flush(self, optimizer: torch.optim.Optimizer | None = None) -> bool:
        """Replace the gradients by the mean of the residuals that are left on all ranks, also of those that
        a :class:`Budget` averaged: contributions that were excluded from their own step and have not been
        applied since. For the end of training::

            if session.flush():
                optimizer.step()

        With an ``optimizer`` it takes this step itself and clears the gradients. Then the gradients of every
        backward pass have been applied exactly once. False: no rank had a residual, the gradients are zero,
        and there is no step to take. Gradients are not scaled by a GradScaler: call the optimizer's own
        ``step``.

        Collective and exact: call it on every rank, between two steps.
        """
        if self._leaving.has_left:  # leave() has given what was left
            return False
        self._require_open()
        model = self._require_model()
        means = means_of_residuals(
            self._streams, self.all_reduce_async, lambda: self._transport.rank_lost is None
        )
        # An optimizer step that follows is not one of training.
        self._verdict = (self._steps.number - 1, True)
        is_any = make_gradients(self, model, means)
        if optimizer is not None:
            if is_any:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return is_any

    def on_membership(self, callback: MembershipCallback) -> Callable[[], None]:
        """Call ``callback(MembershipEvent)`` whenever a rank is removed from the group, or returns. See
        :meth:`Communicator.on_membership`."""
        return self._transport.membership.register(callback)

    @property
    def loss_scale(self) -> float:
        """The scale of the GradScaler that :meth:`keep` was given; 1 without one."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

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
        """Start reducing a CPU tensor in place between the model's own buckets. Exact; with a ``stream`` it
        has a deadline as gradients have (``Config.bounded``). See :meth:`Communicator.all_reduce_async`."""
        self._require_open()
        options = CallOptions(weight, stream, exact, scale)
        return start_all_reduce(
            self._transport, buffer.detach(), op, options, may_be_late=bool(self._config.bounded)
        )

    def leave(self) -> None:
        """Leave the group between two steps, while the others train on. They do not wait for a silent rank,
        and no operation of theirs fails. Contributions that were excluded from their own step go along with
        the next steps of the others, for a few steps at most; then the session is closed. For a process
        that must end, see :meth:`leave_on_sigterm`.

        Not collective: call it on one rank, with no operation of this session in flight. LocalError: the
        others could not go on, because membership is fixed.
        """
        self._require_open()
        self._leaving.require_possible("leave()", self._fixed.reasons)
        self._rejoin.finish()
        if self.size > 1:
            self._leaving.run(self._steps.number, self.loss_scale, self._scaler is None)
        self._leaving.has_left = True
        self.close()

    def leave_on_sigterm(self) -> None:
        """Make SIGTERM, which schedulers send before they end a process, a reason to :meth:`leave`.
        ``session.batches`` then ends between two steps, and this rank has left. Other loops look at
        :attr:`leaving` themselves::

            while session.step < steps and not session.leaving:
                ...
            if session.leaving:
                session.leave()

        A second SIGTERM does what it did before. Call it in the main thread.
        """
        self._require_open()
        self._leaving.require_possible("leave_on_sigterm()", self._fixed.reasons)
        self._leaving.listen()

    @property
    def leaving(self) -> bool:
        """Whether this rank was asked to leave, or has left."""
        return self._leaving.is_asked or self._leaving.has_left

    def close(self) -> None:
        """Leave the group. DDP cannot forget a hook, so the model's next backward pass raises ClosedError."""
        if self.is_open:
            self._meeting.close(finished=self.error is None and not self._leaving.has_left)
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
            self._fixed.note("join(), which also makes gradients exact")
        step = self._enter_step(bucket)
        layout, is_new = self._streams.enter(bucket, model)
        on_cpu = buffer.device.type == "cpu"
        host = buffer if on_cpu else buffer.cpu()
        if is_new:
            self._streams.add_moved(layout, host, step.scale)
        encoded = self._encoder.encoded(host)
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
        self._steps.started(step, operation, bucket.is_last())
        return future_of(
            operation,
            buffer,
            self._pool,
            before=lambda: self._bucket_done(step),
            devices=None if on_cpu else [buffer.device],
            explain=lambda error: self._explain(step, buffer, error),
        )

    def _missing_share(self, step: StepReport) -> float:
        """The share that is not in a step's gradient, the same on all ranks. With best effort ranks lose
        different parts, so they exchange how much."""
        if self._config.delivery == "carry" or self._config.skip_above == 1.0:
            return step.excluded_share
        share = torch.tensor([step.loss_share])
        self.all_reduce_async(share).wait()
        return float(share)

    def _leaves(self) -> bool:
        """Between two steps: whether the loop ends here."""
        if self._leaving.is_asked and self.is_open:
            self.leave()
        return self._leaving.has_left

    def _require_open(self) -> None:
        if not self.is_open:
            raise ClosedError("the session is closed; make a new DistributedDataParallel without attach()")

    def _require_model(self) -> DistributedDataParallel:
        if (model := self._model()) is None:
            raise ClosedError("the model of this session is gone")
        return model

    def _enter_step(self, bucket: GradBucket) -> OpenStep:
        """Buckets come in the order of their index, so index 0 begins a step; an earlier one may have been
        given up."""
        if bucket.index() == 0:
            if not self._released:  # the loop calls model.forward(), which runs no hooks
                self._stays_readable = False
                self._transport.release()
            self._released = False
            self._streams.begin_step()
            self._steps.begin(self.loss_scale)
            self._rejoin.note_gradients()
        return self._steps.open

    def _bucket_done(self, step: OpenStep) -> None:
        if self._steps.ended(step) and self._steps.last and self.rank in self._steps.last.members:
            self._rejoin.note_success()

    def _explain(self, step: OpenStep, buffer: torch.Tensor, error: Exception) -> Exception | None:
        """None: the backward pass goes on without a result, because a snapshot will replace what becomes of
        it. The gradient is zero then, so that no GradScaler sees infinities in what is left of it."""
        told = self._rejoin.explain(error)
        if told is None:
            self._steps.discard(step)
            buffer.zero_()
        elif isinstance(told, GroupFinished):
            step.failure = told
        return told

    def _before_forward(self, model: DistributedDataParallel, _: object) -> None:
        """The next backward pass writes to the buckets, and state may be given or taken here."""
        if not torch.is_grad_enabled():
            return
        if model.require_backward_grad_sync:
            self._released = True
            self._transport.release()
        exchanges = len(self._steps.open.operations)
        if (step := self._rejoin.before_forward(model, self._steps.number, exchanges)) is not None:
            self._steps.jump(step)
        self._check.before_forward(model, self._steps.number)
        self._leaving.note_step()

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A step without gradients makes optimizers do nothing."""
        self._rejoin.note_optimizer_step()
        if not self.should_step():
            for parameter in self._require_model().parameters():
                parameter.grad = None


def average_bucket(state: Session, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The DDP communication hook; torch requires the name and the annotation of ``bucket``."""
    return state.average(bucket)


def _calls(session: "weakref.ref[Session]", method: Callable[..., None]) -> Callable[..., None]:
    """A hook on an object that may outlive the session."""

    def hook(*args: object) -> None:
        if (alive := session()) is not None and alive.is_open:
            method(alive, *args)

    return hook


def _values_of(streams: Streams, model: "weakref.ref[DistributedDataParallel]") -> Callable[[int], int]:
    """How many float32 a stream's bucket has; 0: it is of another type, or unknown."""

    def values_of(stream: int) -> int:
        layout, alive = streams.known(stream), model()
        if layout is None or alive is None:
            return 0
        dtype = list(alive.parameters())[layout.places[0].position].dtype
        return layout.elements if dtype == torch.float32 else 0

    return values_of


def _copy_to_device(buffer: torch.Tensor, host: torch.Tensor) -> None:
    buffer.copy_(host)
    if buffer.device.type == "cuda":
        torch.cuda.synchronize(buffer.device)


def _close(
    transport: Transport,
    pool: CompletionPool,
    rejoin: Rejoin,
    check: ParameterCheck,
    leaving: Leaving,
    meeting: "GroupMeeting | ElasticMeeting",
) -> None:
    """While the engine still answers, ranks that want a snapshot are told that this one has finished."""
    leaving.forget()
    meeting.close(finished=False)
    check.close()
    rejoin.finish()
    close_transport(transport, pool)
    rejoin.close()
