"""One rank of a chapter of training, a process on its own host: ``python -m
optireduce.trials.soak.train_rank '<json of Seat>'``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ... import attach
from ...comm_hook import Session
from ...report import StepReport
from ..gloo import join_gloo
from ..voice import Voice
from .loop import config_of, soak
from .plan import Seat
from .values import Floats, Ledger, contribution

_SMALL_PARAMETER = 1_000  # values: a bucket of two packets
_BUCKET_MB = 1e-3  # so little that every parameter has a bucket of its own


class Exercise(torch.nn.Module):
    """Its gradients are known: of -sum(parameter * given) they are what was given, negative."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss."""
        return -torch.stack([(part * g).sum() for part, g in zip(self.parts, given, strict=True)]).sum()

    def values(self) -> Floats:
        """A copy of all parameters, one after the other."""
        return torch.cat([part.detach() for part in self.parts]).numpy()


class Training:
    """Steps of DDP as a user writes them. SGD adds every gradient to the parameters: they are the sum of all
    contributions."""

    def __init__(self, seat: Seat, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        self._ddp, self._optimizer = ddp, optimizer
        self._exercise: Exercise = ddp.module
        self._sizes = parameter_sizes(seat.size // 4)
        self._elements = sum(self._sizes) - 1  # and the value that says whose time is over
        # Without the optimizer no rank returns by a snapshot: the ledger expects every contribution.
        self.session: Session = attach(ddp, config_of(seat))
        self.ledger = Ledger(self._elements, len(seat.addresses))
        self._before = self._exercise.values()
        self._steps = 0

    def prepare(self, over: bool) -> None:
        """Forward."""
        given = np.append(contribution(self._elements, self._steps), np.float32(over))
        self._optimizer.zero_grad()
        self._loss: torch.Tensor = self._ddp(torch.split(torch.from_numpy(given), self._sizes))

    def reduce(self) -> tuple[StepReport, Floats]:
        """Backward, and the optimizer."""
        self.ledger.expect(self._steps)
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._steps += 1
        report = self.session.last_step
        assert report is not None
        now = self._exercise.values()
        change, self._before = now - self._before, now
        return report, change

    def finish(self) -> float:
        """The session's own flush."""
        self.session.flush(self._optimizer)
        return self.ledger.deviation(self._exercise.values()[:-1])

    def stats(self) -> Mapping[str, Any]:
        """Of the session."""
        return self.session.stats()


def parameter_sizes(elements: int) -> list[int]:
    """Two large parameters and a small one, in values."""
    small = min(_SMALL_PARAMETER, elements // 4)
    half = (elements - small) // 2
    return [half, elements - small - half, small]


def main() -> None:
    """Join, train, leave."""
    seat = Seat.from_json(sys.argv[1])
    voice = Voice()
    join_gloo(seat.rank, len(seat.addresses), seat.interface, seat.folder)
    ddp = DistributedDataParallel(Exercise(parameter_sizes(seat.size // 4)), bucket_cap_mb=_BUCKET_MB)
    training = Training(seat, ddp, torch.optim.SGD(ddp.parameters(), lr=1.0))
    voice.tell("ready")
    soak(seat, voice, training)
    training.session.close()
    dist.destroy_process_group()
    voice.tell("done")


if __name__ == "__main__":
    main()
