"""How long bursts must last so that Gloo's all-reduce has a given tail: tried on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..lab import Environment, Lab, calm, disturb
from .allreduce.comparison import compare, figures
from .allreduce.plan import GLOO, SYSTEMS, Plan

ITERATIONS = 200
_BLOCK = 10
_MOST_TRIALS = 5
_TOLERANCE = 0.15
_GOOD_ENOUGH = 0.07  # no need to try again
_LARGEST_CHANGE = 2.5  # of the bursts' length from one trial to the next: a p99 is a noisy guide


@dataclass(frozen=True)
class Trial:
    """Bursts of this mean length gave Gloo this tail."""

    on_ms: float
    ratio: float
    p50: float


@dataclass(frozen=True)
class Calibration:
    """The trial that came nearest, and whether it is near enough."""

    environment: Environment
    ratio: float
    trials: tuple[Trial, ...]

    @property
    def off(self) -> float:
        """How far from what the name says, relative."""
        assert self.environment.tail is not None
        return abs(self.ratio / self.environment.tail - 1)

    @property
    def reached(self) -> bool:
        """Near enough for the name."""
        return self.off <= _TOLERANCE


def find(
    lab: Lab,
    environment: Environment,
    size: int,
    seed: int,
    advance: Callable[[str, int], None],
    tried: Callable[[Trial], None],
    iterations: int = ITERATIONS,
) -> Calibration:
    """Try until it fits, at most five times. ``advance(note, operations)`` as a trial proceeds, ``tried``
    when it has ended."""
    assert environment.bursts is not None
    assert environment.tail is not None
    trials: list[Trial] = []
    on_ms = environment.bursts.on_ms
    for _ in range(_MOST_TRIALS):
        trials.append(_try(lab, _lasting(environment, on_ms), size, seed, iterations, advance))
        found = _nearest(environment, trials)
        tried(trials[-1])
        if found.off <= _GOOD_ENOUGH:
            break
        on_ms = next_length(trials[-1], environment.tail)
    return found


def next_length(trial: Trial, target: float) -> float:
    """What an operation loses to a burst grows with the burst: scale what the tail has above 1."""
    above = max(trial.ratio - 1, 0.05)
    change = (target - 1) / above
    return trial.on_ms * min(_LARGEST_CHANGE, max(1 / _LARGEST_CHANGE, change))


def _try(
    lab: Lab,
    environment: Environment,
    size: int,
    seed: int,
    iterations: int,
    advance: Callable[[str, int], None],
) -> Trial:
    assert environment.bursts is not None
    plan = Plan((SYSTEMS[GLOO],), len(lab.addresses), size, iterations, _BLOCK, 0)
    try:
        found = compare(lab, plan, lambda: disturb(lab, environment, seed), advance)
    finally:
        calm(lab)
    row = figures(GLOO, found.systems[GLOO])
    return Trial(environment.bursts.on_ms, row.tail, row.p50)


def _nearest(environment: Environment, trials: list[Trial]) -> Calibration:
    target = environment.tail
    assert target is not None
    best = min(trials, key=lambda trial: abs(trial.ratio / target - 1))
    return Calibration(_lasting(environment, best.on_ms), best.ratio, tuple(trials))


def _lasting(environment: Environment, on_ms: float) -> Environment:
    assert environment.bursts is not None
    return replace(environment, bursts=environment.bursts.lasting(on_ms))
