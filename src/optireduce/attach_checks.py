"""What attach() looks at before it forms a group: its arguments, and what else the loop waits for."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .config import Config
from .elastic.group import ElasticGroup

_logger = logging.getLogger("optireduce")
_OPTIMIZER = "pass the optimizer that trains ddp_model"


def check_arguments(model: Any, config: Any, group: Any, optimizer: Any) -> torch.optim.Optimizer | None:
    """TypeError or ValueError names the argument, its value and what would be right. Returns the optimizer
    itself where a framework wrapped it."""
    _check_model(model)
    if isinstance(config, torch.optim.Optimizer):
        raise TypeError(
            f"config is a {type(config).__name__}: pass the optimizer by name, attach(model, optimizer=...)"
        )
    if config is not None and not isinstance(config, Config):
        raise TypeError(
            f"config is a {type(config).__name__}: it must be an optireduce.Config, for example "
            f'optireduce.Config(wire="bf16"), or None to read the environment'
        )
    found = _checked_optimizer(model, optimizer)
    if isinstance(group, ElasticGroup):
        _check_elastic(model, found)
    elif group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"process_group is a {type(group).__name__}: it must be a ProcessGroup, an ElasticGroup or None"
        )
    return found


def _check_elastic(model: DistributedDataParallel, optimizer: torch.optim.Optimizer | None) -> None:
    size = model.process_group.size()
    if size != 1:
        raise ValueError(
            f"ddp_model has a process group of {size} ranks, whose collectives a restarted process would "
            f"miss: make it with DistributedDataParallel(module, process_group=group.local)"
        )
    if optimizer is None or not trains_all(model, optimizer):
        raise ValueError(
            f"optimizer = {type(optimizer).__name__} is not usable with an ElasticGroup: pass the one that "
            f"trains all parameters, because a restarted process takes over its state"
        )


def _check_model(model: Any) -> None:
    if not isinstance(model, DistributedDataParallel):
        inner = getattr(model, "_orig_mod", None)  # of torch.compile
        advice = "attach the model before torch.compile" if inner is not None else "wrap the model first"
        raise TypeError(
            f"ddp_model is a {type(model).__name__}: it must be a DistributedDataParallel; {advice}"
        )
    hooks = [getattr(hook, "__name__", repr(hook)) for hook, _ in model._comm_hooks]
    if hooks:
        raise ValueError(
            f"ddp_model already has the communication hook {hooks[0]}: attach() works once for each "
            f"DistributedDataParallel; make a new one to attach again"
        )


def _checked_optimizer(model: torch.nn.Module, optimizer: Any) -> torch.optim.Optimizer | None:
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        wraps = isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
        advice = "pass its .optimizer" if wraps else _OPTIMIZER
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}: it must be a torch.optim.Optimizer; {advice}"
        )
    found = optimizer
    while isinstance(inner := getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = inner  # Accelerate's wrapper
    ours = {id(parameter) for parameter in model.parameters()}
    trained = [parameter for group in found.param_groups for parameter in group["params"]]
    if not any(id(parameter) in ours for parameter in trained):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__} whose parameters are not in ddp_model (0 of "
            f"{len(trained)} match): {_OPTIMIZER}"
        )
    return found


def trains_all(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether no other optimizer has state of this model."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return all(id(each) in trained for each in model.parameters() if each.requires_grad)


def other_collectives(model: DistributedDataParallel) -> list[str]:
    """Collectives of the training loop outside the session's group. They wait for every rank of the process
    group, so training cannot go on without one."""
    found = []
    if model.will_sync_module_buffers():  # type: ignore[no-untyped-call]
        found.append("DDP broadcasts the model's buffers in every forward pass")
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
        found.append("the model has SyncBatchNorm layers")
    if model.find_unused_parameters:
        found.append("find_unused_parameters=True, which also makes gradients exact")
    return found


class FixedMembership:
    """Why training cannot go on without a silent rank; false while there is no reason."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.reasons: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def note(self, *reasons: str) -> None:
        """Every reason is logged once."""
        new = [reason for reason in reasons if reason not in self.reasons]
        self.reasons += new
        if new and self._rank == 0:
            _logger.warning(
                "fixed membership: training ends without a silent rank, as with Gloo, because of collectives "
                "outside optireduce: %s",
                "; ".join(new),
            )
