"""Which runs a study is made of, from what the user typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..cli.errors import UsageError
from .strategies import EXACT, HOPELESS, PATTERNS, STRATEGIES, Loss, Strategy
from .task import Task
from .tasks import TASKS
from .training import Case

T = TypeVar("T")

_MOST_LOSS = 0.5


@dataclass(frozen=True)
class Plan:
    """Everything combined with everything."""

    tasks: Sequence[Task]
    strategies: Sequence[Strategy]
    losses: Sequence[Loss]
    seeds: int
    steps: int | None
    """None: as many as each task needs."""
    first_seed: int = 0

    def cases(self) -> Iterator[Case]:
        """The exact runs of a task come before those that are compared with them."""
        for task in self.tasks:
            if EXACT in self.strategies:
                yield from self._seeds(task, EXACT, None)
            for loss in self.losses:
                for strategy in self.strategies:
                    if not strategy.lossless:
                        yield from self._seeds(task, strategy, loss)

    def _seeds(self, task: Task, strategy: Strategy, loss: Loss | None) -> Iterator[Case]:
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            yield Case(task, strategy, loss, seed, self.steps or task.steps)


def chosen_tasks(text: str, threads: int | None = None) -> list[Task]:
    """``all`` or names with commas between them. ``threads``: instead of each task's own number."""
    names = ",".join(TASKS) if text == "all" else text
    tasks = [load() for load in _chosen(names, TASKS, "--task")]
    return tasks if threads is None else [replace(task, threads=threads) for task in tasks]


def chosen_strategies(text: str) -> list[Strategy]:
    """Names with commas between them."""
    return _chosen(text, STRATEGIES, "--strategies")


def chosen_losses(patterns: str, shares: str, hopeless: str = "everything") -> list[Loss]:
    """Every pattern with every share, for all that is to be hopeless."""
    names = _chosen(patterns, {name: name for name in PATTERNS}, "--patterns")
    kinds = _chosen(hopeless, {name: name for name in HOPELESS}, "--hopeless")
    return [
        Loss(name, _share(share), what) for what in kinds for name in names for share in shares.split(",")
    ]


def _chosen(text: str, known: Mapping[str, T], option: str) -> list[T]:
    for name in text.split(","):
        if name not in known:
            raise UsageError(f"{option}: {name!r} is not one of {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= _MOST_LOSS:
        raise UsageError(f"--loss: {text!r} is not a share from 0 to {_MOST_LOSS}, for example 0.05")
    return share
