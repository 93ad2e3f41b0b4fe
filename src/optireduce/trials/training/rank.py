"""One rank: an ordinary DDP training loop, as a user would write it, plus stopwatches and snapshots.

``python -m optireduce.trials.training.rank '<json of Seat>'``, a process on its own host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ... import attach
from ...comm_hook import Session
from ...config import Config
from ...page.training_log import TrainingLog
from ..gloo import join_gloo
from ..seat import Seat
from ..stream import missing_share
from ..voice import Voice
from .data import load_text, sample_batch
from .model import ByteTransformer, ModelConfig
from .plan import GLOO, TrainingPlan

_HELD_OUT_BATCH = 16


def train(seat: Seat[TrainingPlan], voice: Voice) -> None:
    """Train, then look back: the snapshots are evaluated when no step waits for it."""
    plan = seat.plan
    training, held_out = load_text()
    torch.manual_seed(plan.seed)
    config = ModelConfig()
    model = ByteTransformer(config)
    last_gradient = GradientClock(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=plan.learning_rate)
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / plan.ramp_steps))
    session = _attach(seat, ddp, optimizer)
    if session is not None:
        session.keep(ramp)
    generator = torch.Generator().manual_seed(plan.seed * 1000 + seat.rank)  # other text on every rank
    log = TrainingLog(str(seat.path("steps-{rank}.jsonl")), seat.rank)
    snapshots = Snapshots(model)
    voice.tell("ready")
    voice.gate()
    began = time.perf_counter()
    for step in _steps(session, plan.steps):
        start = time.perf_counter()
        time.sleep(plan.late.delay(plan.seed, seat.rank, seat.size, step))
        tokens, targets = sample_batch(training, plan.batch, config.context, generator)
        loss = ddp(tokens, targets)
        loss.backward()
        averaged = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.most_norm)
        optimizer.step()
        ramp.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        log.step(step, end - start, loss.item())
        voice.tell(
            "step", step=step, clock=end - began, seconds=end - start, loss=loss.item(),
            waited=averaged - last_gradient.seconds, updating=end - averaged, **_fate(session),
        )  # fmt: skip
        if seat.rank == 0 and (step + 1) % plan.evaluate_every == 0 and step + 1 < plan.steps:
            snapshots.take(step, end - began)
    np.save(seat.path(f"parameters-{seat.rank}.npy"), snapshots.now())
    if session is not None:
        session.flush(optimizer)  # as before saving the model
    if seat.rank == 0:
        snapshots.take(plan.steps - 1, time.perf_counter() - began)
    voice.tell("trained")
    for step, clock, taken_at, loss_then in snapshots.evaluate(held_out, config, plan):
        log.held_out(step, loss_then, taken_at)
        voice.tell("held_out", step=step, clock=clock, loss=loss_then)


class Snapshots:
    """Parameters at certain steps. To evaluate at once would make one rank late for the next step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._taken: list[tuple[int, float, float, torch.Tensor]] = []

    def take(self, step: int, clock: float) -> None:
        """Keep the parameters as they are now."""
        vector = parameters_to_vector(self._model.parameters()).detach().clone()
        self._taken.append((step, clock, time.time(), vector))

    def now(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The parameters at this moment."""
        return parameters_to_vector(self._model.parameters()).detach().numpy()

    @torch.no_grad()
    def evaluate(
        self, text: torch.Tensor, config: ModelConfig, plan: TrainingPlan
    ) -> list[tuple[int, float, float, float]]:
        """Of each snapshot: its step, the clock and the time then, and the loss on held-out text."""
        found = []
        for step, clock, taken_at, vector in self._taken:
            vector_to_parameters(vector, self._model.parameters())
            found.append((step, clock, taken_at, held_out_loss(self._model, text, config, plan)))
        return found


class GradientClock:
    """When the backward pass produced its latest gradient. After the last one, `backward()` only waits."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seconds = 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._tick)  # type: ignore[no-untyped-call]

    def _tick(self, _parameter: torch.Tensor) -> None:
        self.seconds = time.perf_counter()


@torch.no_grad()
def held_out_loss(
    model: torch.nn.Module, text: torch.Tensor, config: ModelConfig, plan: TrainingPlan
) -> float:
    """Mean loss over the same random windows of held-out text every time, whatever the seed."""
    generator = torch.Generator().manual_seed(0)
    losses = [
        model(*sample_batch(text, _HELD_OUT_BATCH, config.context, generator))
        for _ in range(plan.held_out_batches)
    ]
    return float(torch.stack(losses).mean())


def _attach(
    seat: Seat[TrainingPlan], ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer
) -> Session | None:
    """The one line that is ours."""
    if seat.plan.system == GLOO:
        return None
    settings = {"operation_log": str(seat.path("operations-{rank}.jsonl"))} | dict(seat.plan.settings)
    return attach(ddp, Config.from_env(**settings), optimizer=optimizer)


def _steps(session: Session | None, count: int) -> Iterator[int]:
    """The group's steps: a rank that returns by a snapshot jumps over some."""
    if session is None:
        yield from range(count)
        return
    while session.step < count:
        yield session.step


def _fate(session: Session | None) -> dict[str, Any]:
    """What became of this step's contributions."""
    report = None if session is None else session.last_step
    if report is None:
        return {"missing": 0.0, "timed_out": False}
    return {"missing": missing_share(report), "timed_out": report.timed_out}


def main() -> None:
    """Train and leave. No rank waits for the others at the end: one of them may be dead on purpose."""
    seat = Seat.from_json(sys.argv[1], TrainingPlan)
    voice = Voice()
    join_gloo(seat.rank, seat.size, seat.interface, seat.folder)
    train(seat, voice)
    voice.gate()
    dist.destroy_process_group()
    voice.tell("done")


if __name__ == "__main__":
    main()
