"""The state of any torch optimizer, by the position of its parameters in the model.

``state_dict`` numbers parameters by their place in the optimizer's groups, and the order of groups may differ
between ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import MismatchError

# How the optimizer computes, not what; and its own names. A rank keeps these.
_OWN_OPTIONS = ("params", "param_names", "foreach", "fused")
_OWN_ENTRIES = ("state", "param_groups")


class OptimizerState:
    """Reads and writes the state of one optimizer. Tensors are those of the optimizer, not copies."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._now: dict[str, Any] = optimizer.state_dict()
        positions = {id(parameter): n for n, parameter in enumerate(model.parameters())}
        self._position: dict[Any, int] = {}  # by the optimizer's own number
        self._parameter: dict[Any, torch.Tensor] = {}
        for packed, group in zip(self._now["param_groups"], optimizer.param_groups, strict=True):
            for number, parameter in zip(packed["params"], group["params"], strict=True):
                # Parameters outside the model come after it, in the optimizer's order.
                position = positions.setdefault(id(parameter), len(positions))
                self._position[number] = position
                self._parameter[number] = parameter

    def packed(self) -> dict[str, Any]:
        """The state, the same on all ranks that train alike."""
        groups = [
            [
                sorted(self._position[number] for number in group["params"]),
                {name: value for name, value in group.items() if name not in _OWN_OPTIONS},
            ]
            for group in self._now["param_groups"]
        ]
        return {
            "state": {
                self._position.get(number, number): each for number, each in self._now["state"].items()
            },
            "groups": sorted(groups, key=lambda group: group[0]),
            "rest": {name: value for name, value in self._now.items() if name not in _OWN_ENTRIES},
        }

    def check(self, packed: dict[str, Any]) -> None:
        """MismatchError: it is not of such an optimizer."""
        ours = [group[0] for group in self.packed()["groups"]]
        theirs = [group[0] for group in packed["groups"]]
        if ours != theirs:
            raise MismatchError(
                f"the optimizer's groups have {[len(each) for each in ours]} parameters here and "
                f"{[len(each) for each in theirs]} on the other ranks, or other ones: it must be made "
                f"alike on every rank"
            )

    def load(self, packed: dict[str, Any]) -> None:
        """Give the optimizer this state."""
        number_at = {position: number for number, position in self._position.items()}
        options = {tuple(positions): options for positions, options in packed["groups"]}
        groups = [
            group | options[tuple(sorted(self._position[number] for number in group["params"]))]
            for group in self._now["param_groups"]
        ]
        state = {number_at.get(position, position): each for position, each in packed["state"].items()}
        self._optimizer.load_state_dict({"state": state, "param_groups": groups, **packed["rest"]})
        for number, parameter in self._parameter.items():
            held = self._optimizer.state.get(parameter, {})
            for name, value in state.get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    held[name] = _laid_out(value, held[name], parameter)


def _laid_out(value: torch.Tensor, held: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """``load_state_dict`` casts to the parameter's type also what is wider on purpose. And fused optimizers
    walk through memory, so a state must lie there as its parameter does (channels_last)."""
    if held.dtype == value.dtype and (held.shape != parameter.shape or held.stride() == parameter.stride()):
        return held
    memory = parameter if held.shape == parameter.shape else held
    return torch.empty_like(memory, dtype=value.dtype, device=held.device).copy_(value)
