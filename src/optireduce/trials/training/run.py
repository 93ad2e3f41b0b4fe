"""One training run on given hosts, from its start to its outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..places import Place
from ..ranks import RankFailed, Ranks, Record
from ..seat import seats
from .outcome import HeldOut, Outcome, Step
from .plan import RANK_MODULE, TrainingPlan

_TICK_SECONDS = 0.5

Advance = Callable[[Step], None]


def run_training(
    place: Place,
    plan: TrainingPlan,
    folder: Path,
    *,
    begin: Callable[[], None] = lambda: None,
    advance: Advance = lambda step: None,
    at_step: Callable[[int], frozenset[int]] = lambda step: frozenset(),
) -> Outcome:
    """Train. Logs and parameters stay in ``folder``, which must be new. ``begin`` is called when all ranks
    are ready, ``advance`` with each step of rank 0; ``at_step`` may then end ranks, and says which.

    A run that fails, as Gloo's do when a rank dies, is an outcome too.
    """
    folder = folder.resolve()  # ranks meet at a URL, where a relative path's first part would be a host
    folder.mkdir(parents=True)
    outcome = Outcome(plan.system, plan.seed)
    dead: set[int] = set()
    with Ranks(place, RANK_MODULE, seats(plan, place, str(folder))) as ranks:
        try:
            for told in ranks.records(_TICK_SECONDS, dead, begin=begin):
                if told is None:
                    continue
                rank, record = told
                if rank == 0:
                    step = _note(outcome, record)
                    if step is not None:
                        advance(step)
                        dead |= at_step(step.step)
        except RankFailed as error:
            outcome.failure = str(error)
    outcome.replica_difference = difference(folder, len(place.addresses))
    return outcome


def _note(outcome: Outcome, record: Record) -> Step | None:
    values = {name: value for name, value in record.items() if name != "kind"}
    if record["kind"] == "held_out":
        outcome.held_out.append(HeldOut(**values))
    if record["kind"] != "step":
        return None
    outcome.steps.append(Step(**values))
    return outcome.steps[-1]


def difference(folder: Path, size: int) -> float | None:
    """Between the parameters of rank 0 and any other's, of the largest parameter: of itself, one near zero
    differs by many times its size. None: no rank has left any."""
    found = [folder / f"parameters-{rank}.npy" for rank in range(size)]
    parameters = [np.load(path) for path in found if path.exists()]
    if not parameters:
        return None
    largest = float(np.abs(parameters[0]).max()) or 1.0
    return max(float(np.abs(other - parameters[0]).max()) for other in parameters) / largest
