"""The ranks' models: equal at the beginning, then each with its own parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector

from .task import Batch, Task

Tensors = Mapping[str, torch.Tensor]

_batched_attention = sdpa_kernel(SDPBackend.MATH)  # vmap would run the fused one replica by replica


class Replicas:
    """All replicas of one run as rows of one tensor: a step computes them all at once."""

    def __init__(self, task: Task, ranks: int, seed: int) -> None:
        self._task = task
        self._model = _initialised(task, seed)
        flat = parameters_to_vector(self._model.parameters()).detach()
        self.parameters = flat.repeat(ranks, 1)
        """(ranks, elements); whoever writes to it changes the replicas."""
        self._named = _views(self._model, self.parameters)
        self._optimizer = task.optimizer(self.parameters)

    @_batched_attention
    def gradients(self, batches: Sequence[Batch]) -> torch.Tensor:
        """(ranks, elements): each replica's gradient of the loss over its own batch."""
        inputs, targets = (torch.stack(column) for column in zip(*batches, strict=True))
        losses = vmap(_caller(self._model))(self._named, inputs, targets)
        # A replica's parameters are in no other replica's loss: the sum has all gradients, side by side.
        stacked = torch.autograd.grad(losses.sum(), list(self._named.values()))
        return torch.cat([gradient.flatten(1) for gradient in stacked], dim=1)

    def update(self, gradients: torch.Tensor, learning_rate: float) -> None:
        """Every optimizer's step, with its own replica's row."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.parameters.grad = gradients
        self._optimizer.step()

    def loss(self) -> float:
        """The mean of the replicas' own losses over the task's evaluation data."""
        return self._mean(self._model, self._task.evaluation)

    def score(self) -> float | None:
        """The mean of the replicas' own scores over the test data, for tasks that have one."""
        if self._task.score is None or self._task.test is None:
            return None
        return self._mean(self._task.score, self._task.test)

    def equal(self) -> bool:
        """Whether all replicas have the same bits."""
        return bool((self.parameters == self.parameters[0]).all())

    def apart(self) -> float:
        """The replicas' rms distance from their mean, relative to its length."""
        mean = self.parameters.mean(dim=0)
        return float((self.parameters - mean).norm(dim=1).square().mean().sqrt() / mean.norm())

    @torch.no_grad()
    @_batched_attention
    def _mean(self, module: nn.Module, data: Batch) -> float:
        results = vmap(_caller(module), in_dims=(0, None, None))(self._named, *data)
        return float(results.mean())


def _initialised(task: Task, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.model()


def _views(model: nn.Module, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same memory as ``rows``, cut into the model's parameters, stacked over the replicas; autograd sees
    each as a tensor of its own."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    pieces = torch.split(rows, [shape.numel() for shape in shapes.values()], dim=1)
    return {
        name: piece.view(len(rows), *shape).detach().requires_grad_()
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _caller(module: nn.Module) -> Callable[[Tensors, torch.Tensor, torch.Tensor], torch.Tensor]:
    def call(parameters: Tensors, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional_call(module, dict(parameters), (inputs, targets))
        return result

    return call
