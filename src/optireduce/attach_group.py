"""What attach() needs of a process group that already works: its timeout, its store, and an exchange."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .errors import ConnectError

_DEFAULT_TIMEOUT_SECONDS = 1_800.0  # torch's own default, for groups that do not tell theirs


def timeout_of(group: dist.ProcessGroup) -> float:
    """The group's own, in seconds."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return float(options._timeout.total_seconds())
    return _DEFAULT_TIMEOUT_SECONDS


def store_of(group: dist.ProcessGroup) -> object:
    """Its store, or None."""
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):  # not every kind of group, nor every torch, has one
        return None


class GroupExchange:
    """An Exchange over a process group that already works, bounded by that group's own timeout."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("attach() must be called only on ranks that belong to the process group")
        self._group = group

    def gather(self, value: Any, timeout_seconds: float) -> list[Any]:
        """See Exchange."""
        answers: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(answers, value, group=self._group)
        except RuntimeError as error:
            raise ConnectError(
                f"the ranks could not exchange their addresses over the process group: {error}"
            ) from error
        return answers
