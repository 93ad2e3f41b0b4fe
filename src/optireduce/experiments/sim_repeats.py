"""The same loop with several seeds, in numbers whose spread is that of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from ..page.quantiles import percentile
from .sim_environment import RANKS, Environment
from .sim_loop import Loop, Measured, run_loop
from .sim_numbers import Summary, summary
from .study import Advance


@dataclass(frozen=True)
class Repeats:
    """One run for each seed."""

    runs: Sequence[Measured]

    @property
    def seconds(self) -> Summary:
        """The mean time of an operation."""
        return summary([fmean(run.seconds) for run in self.runs])

    @property
    def p99(self) -> Summary:
        """The time that 99 % of the operations do not exceed."""
        return summary([percentile(run.seconds, 0.99) for run in self.runs])

    @property
    def lost(self) -> Summary:
        """The mean share that missed the deadline."""
        return summary([fmean(run.lost) for run in self.runs])

    @property
    def early_share(self) -> float:
        """Of all operations on all ranks, those that ended early."""
        ends = sum(sum(run.closed_by.values()) for run in self.runs)
        return sum(run.closed_by["early"] for run in self.runs) / ends

    @property
    def without_early(self) -> Summary:
        """The mean time of an operation, if ranks that ended early had waited for their deadline."""
        return summary([fmean(run.without_early) for run in self.runs])

    @property
    def deadline(self) -> float:
        """The mean, seconds."""
        return fmean(fmean(run.deadline_seconds) for run in self.runs)

    @property
    def incast(self) -> float:
        """How many senders receivers said they take, on average."""
        return fmean(fmean(run.incast) for run in self.runs)


@dataclass(frozen=True)
class RepeatPlan:
    """A loop that runs in several networks, with several seeds in each."""

    environments: Sequence[Environment]
    seeds: int
    loop: Loop

    @property
    def operations(self) -> float:
        """All of them."""
        return float(len(self.environments) * self.seeds * self.loop.operations)

    @property
    def caption(self) -> str:
        """What a figure of means and spreads shows."""
        return (
            f"{RANKS} ranks, {self.loop.elements * 4 / 2**20:g} MiB, virtual time; mean and standard "
            f"deviation of {self.seeds} seeds of {self.loop.measured} operations."
        )

    def repeats(self, environment: Environment, note: str, advance: Advance, **protocol: Any) -> Repeats:
        """The runs in one network, with settings of the protocol."""
        return Repeats(
            [
                run_loop(
                    environment.network(seed, **protocol), self.loop, partial(advance, f"{note}, seed {seed}")
                )
                for seed in range(self.seeds)
            ]
        )
