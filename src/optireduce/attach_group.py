"""What attach() needs of a process group that already works: its timeout, its store, and an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .attach_checks import FixedMembership, other_collectives
from .config import Config
from .errors import ConnectError
from .exchange import Exchange
from .rendezvous import store_host

if TYPE_CHECKING:
    from .elastic.group import ElasticGroup
    from .elastic.meeting import ElasticMeeting

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


def meeting_of(group: dist.ProcessGroup | ElasticGroup, config: Config) -> GroupMeeting | ElasticMeeting:
    """How the ranks of a group meet for one session."""
    if isinstance(group, dist.ProcessGroup):
        return GroupMeeting(group)
    from .elastic.meeting import ElasticMeeting  # only for those who need it

    return ElasticMeeting(group, config)


class GroupMeeting:
    """How the ranks of a session meet: those of a process group are all there."""

    connector = None  # the usual way to form a group

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._exchange = GroupExchange(group)
        self.rank = self._exchange.rank
        self.size = self._exchange.size
        self.name = str(group.group_name)
        self.timeout_seconds = timeout_of(group)
        self.master = store_host(store_of(group))

    def membership(self) -> FixedMembership:
        """What becomes of collectives outside the session."""
        return FixedMembership(self.rank)

    def collectives(self, model: DistributedDataParallel) -> list[str]:
        """Those that the model itself makes."""
        return other_collectives(model)

    def arrive(self) -> Exchange:
        """How to talk to the other ranks before there is an engine."""
        return self._exchange

    def begin(self, session: Any, exchange: Exchange, model: torch.nn.Module) -> None:
        """Nobody joins later."""

    def stats(self) -> dict[str, int]:
        """Nothing to add."""
        return {}

    def close(self, finished: bool) -> None:
        """Nothing to end."""
