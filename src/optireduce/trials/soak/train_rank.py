"""One rank of a chapter of training, a process on its own host: ``python -m
optireduce.trials.soak.train_rank '<json of Seat>'``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ... import attach
from ...comm_hook import Session
from ...report import StepReport
from ..voice import Voice
from .loop import config_of, soak
from .plan import Seat
from .values import PERIOD, contribution, whose, wrong_gradients

_JOIN_TIMEOUT = timedelta(seconds=120)
_SMALL_PARAMETER = 1_000  # values: a bucket of two packets
_BUCKET_MB = 1e-3  # so little that every parameter has a bucket of its own
_LEARNING_RATE = 1e-3


class Exercise(torch.nn.Module):
    """Its gradients are known: of sum(parameter * given) they are what was given."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss."""
        return torch.stack([(part * g).sum() for part, g in zip(self.parts, given, strict=True)]).sum()

    def gradients(self) -> torch.Tensor:
        """A copy of all, one after the other."""
        return torch.cat([part.grad for part in self.parts if part.grad is not None])


class Training:
    """Steps of DDP as a user writes them; what is reduced is the gradient."""

    def __init__(self, seat: Seat, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        self._ddp, self._optimizer = ddp, optimizer
        self._exercise: Exercise = ddp.module
        self._rank, self._ranks, elements = seat.rank, len(seat.addresses), seat.size // 4
        self._given = [
            torch.split(torch.from_numpy(contribution(seat.rank, elements, step)), parameter_sizes(elements))
            for step in range(PERIOD)
        ]
        self.session: Session = attach(ddp, config_of(seat), optimizer=optimizer)
        self._steps = 0

    def prepare(self) -> None:
        """Forward."""
        self._optimizer.zero_grad()
        self._loss: torch.Tensor = self._ddp(self._given[self._steps % PERIOD])

    def reduce(self) -> StepReport:
        """Backward, and the optimizer, which would drop the gradients of a step that is skipped."""
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._gradients = self._exercise.gradients().numpy()
        self._optimizer.step()
        self._steps += 1
        return self._report()

    def wrong_values(self) -> int:
        """In the gradients."""
        return wrong_gradients(self._gradients, self._rank, self._ranks, self._report())

    def whose_values(self) -> str:
        """In the gradients."""
        return whose(self._gradients, self._ranks, self._report())

    def stats(self) -> Mapping[str, Any]:
        """Of the session."""
        return self.session.stats()

    def _report(self) -> StepReport:
        report = self.session.last_step
        assert report is not None
        return report


def parameter_sizes(elements: int) -> list[int]:
    """Two large parameters and a small one, in values."""
    small = min(_SMALL_PARAMETER, elements // 4)
    half = (elements - small) // 2
    return [half, elements - small - half, small]


def main() -> None:
    """Join, train, leave."""
    seat = Seat.from_json(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    torch.set_num_threads(1)
    voice = Voice()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(seat.folder) / 'rendezvous'}",
        rank=seat.rank,
        world_size=len(seat.addresses),
        timeout=_JOIN_TIMEOUT,
    )
    ddp = DistributedDataParallel(Exercise(parameter_sizes(seat.size // 4)), bucket_cap_mb=_BUCKET_MB)
    training = Training(seat, ddp, torch.optim.AdamW(ddp.parameters(), lr=_LEARNING_RATE))
    for _ in range(config_of(seat).warmup_steps):  # a rank that is lost during these ends the group
        training.prepare()
        training.reduce()
    voice.tell("ready")
    soak(seat, voice, training)
    training.session.close()
    dist.destroy_process_group()
    voice.tell("done")


if __name__ == "__main__":
    main()
