"""The end of training: what is left of residuals becomes one last gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import budget
from .averaged_sets import sets_of
from .communicator import Handle
from .errors import RankLostError
from .streams import Layout, Streams

Means = list[tuple[Layout, torch.Tensor]]


def means_of_residuals(
    streams: Streams, all_reduce: Callable[[torch.Tensor], Handle], may_go_on: Callable[[], bool]
) -> Means:
    """Of every stream. A rank that is lost meanwhile fails the same operations on all others: these are
    repeated without it, if the others ``may_go_on``."""
    means = []
    waiting = list(streams.take_all())
    while waiting:
        started = [(*each, each[1].clone()) for each in waiting]
        handles = [all_reduce(mean) for _, _, mean in started]
        waiting = []
        for (layout, residual, mean), handle in zip(started, handles, strict=True):
            try:
                handle.wait()
                means.append((layout, mean))
            except RankLostError:
                if not may_go_on():
                    raise
                waiting.append((layout, residual))
    return means


def make_gradients(session: Any, model: torch.nn.Module, means: Means) -> bool:
    """Replace the gradients, also by what is left of Budgets; whether any of them is not zero."""
    sets = sets_of(session).known
    for each in sets:
        each.clear()
    parameters = list(model.parameters())
    for layout, mean in means:
        for place in layout.places:
            parameter = parameters[place.position]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, requires_grad=False)
            parameter.grad.detach().copy_(place.of(mean))
    found = any(bool(mean.any()) for _, mean in means)
    for each in sets:  # all of them: the calls are collective
        found = budget.flush_one(session, each) or found
    return found
