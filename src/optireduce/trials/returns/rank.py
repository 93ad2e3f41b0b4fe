"""One rank: a training loop that follows the group's step, so that the rank can return.

``python -m optireduce.trials.returns.rank '<json of Seat>'``, a process on its own host.
"""

from __future__ import annotations

import sys
import time
from hashlib import sha256
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ... import ElasticGroup, attach
from ...comm_hook import Session
from ...config import Config
from ..seat import Seat
from ..training.data import load_text, sample_batch
from ..training.model import ByteTransformer, ModelConfig
from ..voice import Voice
from .plan import ReturnPlan

_MEET_SECONDS = 120.0
_OPERATION_SECONDS = 60.0
_HELD_OUT_BATCH = 16


def train(seat: Seat[ReturnPlan], voice: Voice) -> None:
    """All steps, a flush, and what has come of them."""
    plan = seat.plan
    training, held_out = load_text()
    torch.manual_seed(plan.seed)
    torch.set_num_threads(1)
    group = ElasticGroup(seat.rank, seat.size, plan.store, timeout_seconds=_MEET_SECONDS)
    model = DistributedDataParallel(ByteTransformer(ModelConfig()), process_group=group.local)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    session = attach(model, _config(seat), group, optimizer=optimizer)
    session.keep(scheduler)
    if session.stats()["incarnation"] == 0:
        voice.tell("ready")
        voice.gate()
    voice.tell("begun", at=time.monotonic())
    while (step := session.step) < plan.steps:
        begin = time.monotonic()
        generator = torch.Generator().manual_seed((plan.seed * 1000 + seat.rank) * 100_000 + step)
        loss = model(*sample_batch(training, plan.batch, ModelConfig().context, generator))
        time.sleep(max(0.0, begin + plan.step_seconds - time.monotonic()))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        voice.tell("step", step=step, begin=begin, end=time.monotonic(), **_fate(session, step))
    session.flush(optimizer)
    voice.tell(
        "final",
        digest=_digest(model, optimizer, scheduler),
        learning_rate=scheduler.get_last_lr()[0],
        loss=_held_out_loss(model.module, held_out, plan),
        snapshots=session.stats()["snapshots_applied"],
    )
    session.close()


def _config(seat: Seat[ReturnPlan]) -> Config:
    settings: dict[str, Any] = {"interface": seat.interface, "timeout_seconds": _OPERATION_SECONDS}
    return Config(**settings | dict(seat.plan.settings))


def _fate(session: Session, step: int) -> dict[str, Any]:
    """Nothing where the step was discarded."""
    report = session.last_step
    if report is None or report.step != step:
        return {"members": []}
    return {"members": list(report.members)}


def _digest(*objects: Any) -> str:
    found = sha256()
    for each in objects:
        _add(found, each.state_dict())
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            found.update(str(name).encode())
            _add(found, value[name])
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add(found, each)
    else:
        found.update(repr(value).encode())


@torch.no_grad()
def _held_out_loss(model: nn.Module, text: torch.Tensor, plan: ReturnPlan) -> float:
    """Over the same windows every time."""
    generator = torch.Generator().manual_seed(0)
    context = ModelConfig().context
    losses = [
        model(*sample_batch(text, _HELD_OUT_BATCH, context, generator)) for _ in range(plan.held_out_batches)
    ]
    return float(torch.stack(losses).mean())


def main() -> None:
    """Train and leave."""
    seat = Seat.from_json(sys.argv[1], ReturnPlan)
    voice = Voice()
    train(seat, voice)
    voice.tell("done")


if __name__ == "__main__":
    main()
