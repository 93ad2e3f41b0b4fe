"""A session's part in returns: it gives snapshots to others, and takes one when this rank was left behind.

Both happen in one place, on the training thread: the first training forward pass after an optimizer step.
Nothing is in flight there, and the code of the last iteration (scheduler, scaler) has run.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..attach_checks import FixedMembership
from ..errors import LeftBehind, PeerLeftError, TooFewRanksError
from ..exchange import Exchange, agree
from ..membership import MembershipEvent
from ..safeguard import Safeguard
from ..transport import Transport
from .channel import snapshot_key
from .donor import Boundary, Donor
from .mend import Mender
from .pace import Pace
from .requests import Peers
from .returner import Returner, group_finished
from .service import Answer, Service
from .state import Image, TrainingState

_MOST_RANKS = 64  # of a group with views
_MOST_DISCARDED = 100  # steps in a row in which no snapshot can be taken over
_MOST_ATTEMPTS = 6  # snapshots in a row that the members refuse, or that come too late
_SHARE_OF_THE_RATE = 0.5
_LEAST_RATE = 1e6  # bytes per second
_LOOK_SECONDS = 0.005
_STEPS_OF_STATIC_GRAPH = 2  # before DDP cuts its buckets for good

_logger = logging.getLogger("optireduce")


class Rejoin:
    """Made by every rank alike. ``optimizer`` is None, or the membership fixed: no rank can return here."""

    def __init__(
        self,
        transport: Transport,
        exchange: Exchange,
        optimizer: torch.optim.Optimizer | None,
        safeguard: Safeguard,
        fixed: FixedMembership,
    ) -> None:
        self._transport = transport
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._fixed = fixed
        self._safeguard = safeguard
        self._kept: list[Any] = []
        self._donor = Donor()
        self._is_behind = False
        self._replays = False
        self._pace = Pace(transport.config.max_lag)
        self._follows = False
        self._has_stepped = False
        self._began = 0  # steps
        self._discarded = 0
        self._attempts = 0
        self._applied = 0
        self._service: Service | None = None
        self._lacks_donors = optimizer is None
        self._peers = self._meet(exchange)
        self.shelf = self._donor.shelf
        self._lacks_donors |= exchange.size > 1 and not self._peers.doors
        transport.advice_to_left_behind = self._advice

    def close(self) -> None:
        """Answer nobody any more, and hold nothing."""
        self._kept = []
        self._transport.advice_to_left_behind = str
        if self._service is not None:
            self._service.close()

    def finish(self) -> None:
        """This rank is about to leave the group."""
        self._donor.stop("finished")
        if self._is_behind or self._replays:
            _logger.warning(
                "rank %d leaves the group although it was left behind: its parameters are older than those "
                "of the others",
                self._transport.rank,
            )

    @property
    def peers(self) -> Peers:
        """Where the other ranks' services are."""
        return self._peers

    @property
    def door(self) -> int:
        """The port of our own service; 0: none."""
        return 0 if self._service is None else self._service.port

    def standing(self) -> str:
        """What other ranks are told about this one."""
        return str(self._donor.status()["standing"])

    def answer(self, answers: dict[str, Answer]) -> None:
        """Requests of other ranks that are not about snapshots."""
        assert self._service is not None  # no rank could return
        self._service.answers |= answers

    def ask_who_finished(self, has_finished: Callable[[int], bool]) -> None:
        """Processes may be started again: one that has ended need not have finished."""
        self._peers = dataclasses.replace(self._peers, has_finished=has_finished)

    def move(self, rank: int, address: str, port: int) -> None:
        """A restarted process of a rank has its service there."""
        self._peers.move(rank, address, port)

    def begin_behind(self) -> None:
        """This process is a restarted one: it has nothing to give before it has a snapshot."""
        self._is_behind = True
        self._donor.stop("left behind")

    def follow(self) -> None:
        """The loop knows that steps can be jumped over. In any other loop a rank that returned would go on
        after the others have ended, with calls that do not match theirs."""
        self._follows = True

    def stats(self) -> dict[str, int]:
        """What was given and taken."""
        service = self._service
        return {
            "snapshots_applied": self._applied,
            "snapshots_given": self._donor.given,
            "snapshot_sent_bytes": 0 if service is None else service.sent_bytes,
            "snapshot_refused_connections": 0 if service is None else service.refused,
        }

    def keep(self, objects: tuple[Any, ...]) -> None:
        """These travel along. TypeError names an object that cannot."""
        for each in objects:
            if any(not callable(getattr(each, name, None)) for name in ("state_dict", "load_state_dict")):
                raise TypeError(
                    f"keep() got a {type(each).__name__}, which has no state_dict() and load_state_dict(): "
                    f"it takes a scheduler, a GradScaler, a sampler or another object with both"
                )
            Image.of(each.state_dict(), f"the state_dict() of a {type(each).__name__}")
        ours = None if self._optimizer is None else self._optimizer()  # travels in any case
        known = [ours, *self._kept]
        self._kept += [each for each in objects if not any(each is other for other in known)]

    def explain(self, error: Exception) -> Exception | None:
        """What to tell the loop about an operation's error; None: nothing, because a snapshot will bring this
        rank back."""
        if isinstance(error, LeftBehind) and not self._advice():
            if not self._is_behind:
                _logger.warning(
                    "rank %d was left behind: it discards its steps until it has a snapshot of the others",
                    self._transport.rank,
                )
            self._is_behind = True
            self._donor.stop("left behind")
            return None
        if isinstance(error, (TooFewRanksError, PeerLeftError)) and self._peers.doors:
            return group_finished(self._peers) or error
        return error

    def mender(self) -> Mender:
        """For a rank whose parameters differ. Not kept here: it would be a cycle."""
        return Mender(self._transport, self._peers, self._donor, self._state, self._obstacle)

    def note_success(self) -> None:
        """A step has its gradients, and this rank is a member: it trains with the others."""
        self._attempts = 0
        self._pace = Pace(self._transport.config.max_lag)

    def note_gradients(self) -> None:
        """A step has begun."""
        self._has_stepped = False
        self._began += 1
        self._discarded = self._discarded + 1 if self._is_behind else 0
        if self._discarded > _MOST_DISCARDED:
            raise LeftBehind(
                f"this rank was left behind, and for {_MOST_DISCARDED} steps there was no training forward "
                f"pass after an optimizer step, where it could take over a snapshot. Call the model, not "
                f"model.forward(), and step the optimizer that attach() was given",
                [self._transport.rank],
            )

    def note_optimizer_step(self) -> None:
        """The optimizer is about to step."""
        self._has_stepped = True

    def before_forward(self, model: torch.nn.Module, step: int, exchanges: int) -> int | None:
        """The step that a snapshot has moved this rank to; None: none was needed. ``exchanges``: of a
        step."""
        self._donor.step = step
        is_boundary, self._has_stepped = self._has_stepped, False
        if not is_boundary:
            return None
        if self._is_behind or self._gives_up_replay(exchanges):
            return None if self._lacks_buckets(model) else self._come_back(model)
        if self._donor.is_asked:
            self._give(model, step)
        return None

    def _gives_up_replay(self, exchanges: int) -> bool:
        """While this rank replays what it missed: whether a snapshot is the better way."""
        engine = self._transport.engine
        behind = engine.behind()
        if self._replays != (behind is not None):
            self._replays = not self._replays
            self._donor.stop("left behind") if self._replays else self._donor.resume()
        if behind is None or self._advice():
            return False
        if not self._pace.is_too_slow(behind / max(exchanges, 1)) or not engine.give_up_replay():
            return False
        _logger.warning(
            "rank %d is %d operations behind the others, and takes a snapshot instead of replaying them",
            self._transport.rank,
            behind,
        )
        self._is_behind = True
        return True

    def _meet(self, exchange: Exchange) -> Peers:
        """Exchange ports. Every rank does, whether it has a service or not."""
        transport = self._transport

        def listen() -> int:
            if exchange.size > 1 and not self._obstacle():
                self._service = Service(
                    transport.addresses[exchange.rank], exchange.rank, exchange.size, self._donor
                )
            return 0 if self._service is None else self._service.port

        try:
            ports = agree(exchange, listen, transport.timeout_seconds)
        except BaseException:
            self.close()
            raise
        key = snapshot_key(transport.secret)
        if self._service is not None:
            self._service.begin(key)
        others = [rank for rank in range(exchange.size) if rank != exchange.rank and ports[rank]]
        return Peers(exchange.rank, key, {rank: (transport.addresses[rank], ports[rank]) for rank in others})

    def _advice(self) -> str:
        """What would make a return of this rank possible; "": it is."""
        return self._obstacle() or self._unready_loop()

    def _unready_loop(self) -> str:
        """Why the loop would not train alike after a return."""
        if not self._follows:
            return (
                ". A rank can return by a snapshot in a loop that uses session.batches(loader) or "
                "session.step, which jump with it, and session.keep(...) for its scheduler"
            )
        optimizer = None if self._optimizer is None else self._optimizer()
        is_scheduled = optimizer is not None and hasattr(optimizer.step, "_wrapped_by_lr_sched")
        if is_scheduled and not any(getattr(each, "optimizer", None) is optimizer for each in self._kept):
            return ". Give session.keep() the learning rate scheduler: a rank can then return by a snapshot"
        return ""

    def _obstacle(self) -> str:
        """Why no rank can return in this group; "": it can."""
        transport = self._transport
        if transport.size > _MOST_RANKS or transport.config.delivery != "carry":
            return (
                f". A rank returns by a snapshot only in a group of at most {_MOST_RANKS} ranks with "
                f'delivery = "carry"'
            )
        if self._fixed:
            return (
                f". No rank can return by a snapshot while the loop makes collectives outside optireduce: "
                f"{'; '.join(self._fixed.reasons)}"
            )
        if self._lacks_donors:
            return (
                ". Give attach() the optimizer on every rank, one that trains all parameters: a rank that is "
                "left behind can then return by a snapshot"
            )
        return ""

    def _state(self, model: torch.nn.Module) -> TrainingState:
        optimizer = None if self._optimizer is None else self._optimizer()
        assert optimizer is not None  # it stepped just now
        return TrainingState(model, optimizer, [self._safeguard, *self._kept])

    def _give(self, model: torch.nn.Module, step: int) -> None:
        for rank in self._donor.capture(step, lambda: self._boundary(model)):
            self._wait_for(rank)

    def _boundary(self, model: torch.nn.Module) -> Boundary | None:
        """None: there is no state to give. That is no reason to stop training here."""
        try:
            completed, digest = self._transport.engine.position()
            state = self._state(model)
            rate = float(self._transport.stats().get("rate_bytes_per_second", 0.0))
            rate = max(_SHARE_OF_THE_RATE * rate, _LEAST_RATE) if rate else 0.0
            return Boundary(state.shared(), state.buffers(), completed, digest, rate)
        except Exception as error:  # an operation of the loop is in flight, or a kept object fails
            _logger.warning("no snapshot can be taken of rank %d: %s", self._transport.rank, error)
            return None

    def _wait_for(self, rank: int) -> None:
        """The group stands still once, so that a rank that was too slow twice can catch up."""
        returned = []

        def look(event: MembershipEvent) -> None:
            if event.rank == rank and event.kind == "returned":
                returned.append(event)

        forget = self._transport.membership.register(look)
        deadline = time.monotonic() + self._transport.config.rejoin_pause_seconds
        while not returned and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            self._transport.membership.update()
        forget()

    def _lacks_buckets(self, model: torch.nn.Module) -> bool:
        """Whether DDP will cut its buckets anew after this step, which it has done on the others. With
        static_graph a new process does that one step later than usual."""
        return bool(model.static_graph) and self._began < _STEPS_OF_STATIC_GRAPH

    def _come_back(self, model: torch.nn.Module) -> int:
        transport = self._transport
        self._attempts += 1
        if self._attempts > _MOST_ATTEMPTS:
            raise LeftBehind(
                f"this rank was left behind, and the others went on without it after each of "
                f"{_MOST_ATTEMPTS} snapshots. Raise log_bytes, so that they keep more of what it misses, or "
                f"rejoin_pause_seconds",
                [transport.rank],
            )
        began = time.monotonic()
        returner = Returner(self._peers, transport.timeout_seconds, pause=self._attempts > 1)
        try:
            found = returner.fetch()
            self._state(model).apply(found.shared, found.buffers)
            transport.restore(found.completed, found.digest, found.step)
            took = time.monotonic() - began
        finally:
            returner.release()  # only now: the others go on meanwhile
        self._is_behind = self._replays = False
        self._applied += 1
        self._pace.begin_after_snapshot()
        self._donor.step = found.step
        self._donor.resume()
        _logger.warning(
            "rank %d was left behind and took over the others' state of step %d (%.1f MB in %.2f s)",
            transport.rank,
            found.step,
            (found.shared.size + found.buffers.size) / 1e6,
            took,
        )
        return found.step
