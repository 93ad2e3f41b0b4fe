"""What is trained: a model, its data and its optimizer, the same for every strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets


@dataclass(frozen=True)
class Task:
    """One model and its data. Modules take inputs and targets, and return one number."""

    name: str
    steps: int
    """As many as train the model well."""
    learning_rate: float
    model: Callable[[], nn.Module]
    """Makes the model, initialised from torch's global generator. It returns the mean loss."""
    optimizer: Callable[[torch.Tensor], torch.optim.Optimizer]
    """Of a tensor with a row for each replica; element by element, so that rows do not mix."""
    draw: Callable[[torch.Generator], Batch]
    """One rank's batch for one step."""
    evaluation: Batch
    """The loss over this is the result."""
    payload_bytes: int
    """Of a packet: every shard has some twenty or more, and its last one is about full, so that the last
    twentieth of the packets is a twentieth of the bytes."""
    threads: int
    """That compute a step. Results depend on it in the last bits."""
    score: nn.Module | None = None
    """The model with another result, the share of right answers; only of tasks that have one."""
    test: Batch | None = None
    """What the score is measured over."""
