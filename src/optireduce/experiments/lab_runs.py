"""What studies in the lab have in common: one network, calibrated environments, runs on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ..lab import Environment, Lab, calm, disturb, find_environment, require_all_reduces, require_tools
from ..trials.allreduce.comparison import Comparison, compare
from ..trials.allreduce.plan import Plan, System
from ..trials.calibrated import Scope, recall
from ..trials.training.outcome import Outcome, Step
from ..trials.training.plan import TrainingPlan
from ..trials.training.run import run_training

RATE = "200mbit"
BUCKET_BYTES = 4 << 20
BLOCK = 10  # operations of a system before it is the next one's turn
_WARMUP = 25


class Network:
    """The hosts of one study and the environments that they will meet, as calibrated when it begins."""

    def __init__(self, lab: Lab, environments: Iterable[str]) -> None:
        self._lab = lab
        self.hosts = len(lab.addresses)
        self._environments: dict[str, Environment] = {}
        self.notes: dict[str, str] = {}  # how each was calibrated
        for name in environments:
            require_tools(find_environment(name))
            self._environments[name], line = recall(find_environment(name), self._scope())
            self.notes[name] = f"{name}, {self.hosts} hosts: {line}"

    def train(
        self, environment: str, plan: TrainingPlan, advance: Callable[[Step], None] = lambda step: None
    ) -> Outcome:
        """One training run in this environment."""
        with tempfile.TemporaryDirectory(prefix="optireduce-study-") as folder:
            try:
                return run_training(
                    self._lab,
                    replace(plan, late=self._environments[environment].late),
                    Path(folder) / "run",
                    begin=self._begin(environment, plan.seed),
                    advance=advance,
                )
            finally:
                calm(self._lab)

    def compare(
        self,
        environment: str,
        systems: tuple[System, ...],
        iterations: int,
        seed: int,
        advance: Callable[[str, int], None],
    ) -> Comparison:
        """All-reduces of all systems, taking turns, in this environment."""
        require_all_reduces(self._environments[environment])
        size = BUCKET_BYTES // (4 * self.hosts) * 4 * self.hosts
        plan = Plan(systems, self.hosts, size, iterations, min(BLOCK, iterations), _WARMUP)
        try:
            return compare(self._lab, plan, self._begin(environment, seed), advance)
        finally:
            calm(self._lab)

    def _begin(self, name: str, seed: int) -> Callable[[], None]:
        return lambda: disturb(self._lab, self._environments[name], seed)

    def _scope(self) -> Scope:
        return Scope(self.hosts, RATE, BUCKET_BYTES)
