"""What is done to the network of a lab while ranks work."""

from __future__ import annotations

from dataclasses import dataclass

from optireduce.lab import Lab, LabError
from optireduce.lab.shaping import bits_per_second


@dataclass(frozen=True)
class BurstRecipe:
    """A neighbour's bursts; the speed as a share of a link's, so that other rates see the same."""

    on_ms: float
    off_ms: float
    share: float


_BURSTS = {"bursts": BurstRecipe(200, 400, 0.90), "burst-heavy": BurstRecipe(200, 200, 0.95)}
_LOSS = {"loss1": 0.01, "loss3": 0.03}
FAULTS = ("stop", "kill")
ENVIRONMENTS = ("quiet", *_LOSS, *_BURSTS, *FAULTS)


def disturb(lab: Lab, environment: str, seed: int) -> None:
    """Begin to disturb the network as the environment says; quiet and the faults leave it alone."""
    for known, begin in ((_LOSS, _lose), (_BURSTS, _burst)):
        if environment in known:
            begin(lab, environment, seed)


def _lose(lab: Lab, environment: str, seed: int) -> None:
    lab.set_loss(_LOSS[environment])


def _burst(lab: Lab, environment: str, seed: int) -> None:
    if lab.rate is None:
        raise LabError(f"environment = {environment!r} needs links with a rate")
    recipe = _BURSTS[environment]
    lab.background(recipe.on_ms, recipe.off_ms, recipe.share * bits_per_second(lab.rate) / 1e6, seed)
