"""One rank: a DDP training loop that tells a hash of its parameters and optimizer state now and then.

``python -m optireduce.trials.replicas.rank '<json of Seat>'``, a process on its own host.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ... import attach
from ...comm_hook import Session
from ...config import Config
from ..gloo import join_gloo
from ..seat import Seat
from ..stream import missing_share
from ..training.data import load_text, sample_batch
from ..training.model import ByteTransformer, ModelConfig
from ..voice import Voice
from .plan import GLOO, ReplicaPlan

_OPERATION_SECONDS = 60.0
_BATCH = 2

Optimizers = Sequence[torch.optim.Optimizer]


class Counting(nn.Module):
    """A counter, whose gradient is -1 in every value, and perhaps a transformer."""

    def __init__(self, values: int, transformer: bool) -> None:
        super().__init__()
        self.counter = nn.Parameter(torch.zeros(values))
        self.text = ByteTransformer(ModelConfig()) if transformer else None

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        """The loss of both."""
        loss = -self.counter.sum()
        return loss if self.text is None or batch is None else loss + self.text(*batch)

    def optimizers(self) -> Optimizers:
        """SGD counts steps; AdamW has a state that must be equal too."""
        counts: torch.optim.Optimizer = torch.optim.SGD([self.counter], lr=1.0)
        return [counts] if self.text is None else [counts, torch.optim.AdamW(self.text.parameters(), lr=1e-3)]


class Batches:
    """Other text on every rank; nothing where there is no transformer."""

    def __init__(self, plan: ReplicaPlan, rank: int) -> None:
        self._text = load_text()[0] if plan.transformer else None
        self._generator = torch.Generator().manual_seed(plan.seed * 1000 + rank)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The next one."""
        if self._text is None:
            return None
        return sample_batch(self._text, _BATCH, ModelConfig().context, self._generator)


def digest(model: nn.Module, optimizers: Optimizers) -> str:
    """Of all parameters and of the state of all optimizers."""
    found = sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    for optimizer in optimizers:
        for state in optimizer.state_dict()["state"].values():
            for name, value in sorted(state.items()):
                data = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
                found.update(name.encode() + data)
    return found.hexdigest()


def train(seat: Seat[ReplicaPlan], voice: Voice) -> None:
    """All steps, then a flush."""
    plan = seat.plan
    torch.manual_seed(plan.seed)
    model = Counting(plan.values, plan.transformer)
    ddp, optimizers, batches = DistributedDataParallel(model), model.optimizers(), Batches(plan, seat.rank)
    session = None if plan.system == GLOO else attach(ddp, _config(seat))
    voice.tell("ready")
    voice.gate()
    for step in range(plan.steps):
        begin = time.monotonic()
        time.sleep(plan.delay_seconds(seat.rank, seat.size, step))
        computing = time.monotonic()
        loss = ddp(batches.draw())
        time.sleep(max(0.0, computing + plan.step_seconds - time.monotonic()))
        try:
            loss.backward()
        except RuntimeError as error:
            _tell_failure(voice, step, begin, (session and session.error) or error)
            return
        _update(optimizers)
        voice.tell("step", step=step, begin=begin, end=time.monotonic(), **_fate(session))
        if plan.is_checked(step):
            voice.tell("check", step=step, digest=digest(model, optimizers))
    if session is not None and session.flush():
        _update(optimizers)
    counter = model.counter.detach()
    voice.tell(
        "final", digest=digest(model, optimizers), least=float(counter.min()), most=float(counter.max())
    )
    voice.gate()  # nobody leaves before the others are through
    if session is not None:
        session.close()


def _update(optimizers: Optimizers) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _config(seat: Seat[ReplicaPlan]) -> Config:
    settings: dict[str, Any] = {"interface": seat.interface, "timeout_seconds": _OPERATION_SECONDS}
    return Config(**settings | dict(seat.plan.settings))


def _fate(session: Session | None) -> dict[str, Any]:
    report = None if session is None else session.last_step
    if report is None:
        return {}
    return {
        "view": report.view,
        "members": list(report.members),
        "missing": missing_share(report),
        "waited_for": report.waited_for,
    }


def _tell_failure(voice: Voice, step: int, begin: float, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    voice.tell("failed", step=step, begin=begin, end=time.monotonic(), error=text)


def main() -> None:
    """Join, train, leave."""
    seat = Seat.from_json(sys.argv[1], ReplicaPlan)
    voice = Voice()
    join_gloo(seat.rank, seat.size, seat.interface, seat.folder)
    train(seat, voice)
    voice.tell("done")
    sys.stdout.flush()
    os._exit(0)  # torch's own goodbye would wait for ranks that are dead on purpose


if __name__ == "__main__":
    main()
