"""One rank of the demo: an ordinary DDP training loop, as a user would write it, plus two stopwatches."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import optireduce

from ..ranks import Seat, join_group
from .data import load_text, sample_batch
from .model import ByteTransformer, ModelConfig
from .plan import RankDone, StepDone, TrainingPlan

_TIMEOUT = timedelta(seconds=60)


def train_rank(seat: Seat, backend: str, plan: TrainingPlan) -> None:
    """Train, reporting every step (rank 0) and the final parameters (all ranks)."""
    torch.set_num_threads(1)
    join_group(seat, backend, _TIMEOUT)
    training, held_out = load_text()

    torch.manual_seed(plan.seed)
    config = ModelConfig()
    model = ByteTransformer(config)
    last_gradient = GradientClock(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=plan.learning_rate)
    if backend == "optireduce":
        optireduce.attach(ddp, optimizer=optimizer)  # keeps replicas together, whatever misses a deadline
    generator = torch.Generator().manual_seed(plan.seed * 1000 + seat.rank)  # other text on every rank

    for _ in range(plan.steps):
        start = time.perf_counter()
        tokens, targets = sample_batch(training, plan.batch, config.context, generator)
        loss = ddp(tokens, targets)
        loss.backward()
        waited = time.perf_counter() - last_gradient.seconds
        optimizer.step()
        optimizer.zero_grad()
        if seat.rank == 0:
            seat.send(StepDone(time.perf_counter() - start, waited, loss.item()))

    held_out_loss = evaluate(model, held_out, config, plan) if seat.rank == 0 else None
    parameters = parameters_to_vector(model.parameters()).detach().numpy().tobytes()
    seat.send(RankDone(seat.rank, held_out_loss, parameters))
    dist.barrier()
    dist.destroy_process_group()


class GradientClock:
    """When the backward pass produced its latest gradient. After the last one, `backward()` only waits."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seconds = 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._tick)  # type: ignore[no-untyped-call]

    def _tick(self, _parameter: torch.Tensor) -> None:
        self.seconds = time.perf_counter()


@torch.no_grad()
def evaluate(model: torch.nn.Module, text: torch.Tensor, config: ModelConfig, plan: TrainingPlan) -> float:
    """Mean loss over the same random windows of held-out text every time."""
    generator = torch.Generator().manual_seed(plan.seed)
    losses = [
        model(*sample_batch(text, plan.batch, config.context, generator))
        for _ in range(plan.held_out_batches)
    ]
    return float(torch.stack(losses).mean())
