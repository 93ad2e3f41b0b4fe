"""Named kinds of bad days: what is done to a lab while ranks work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .errors import LabError
from .lab import Lab
from .lateness import ON_TIME, Lateness
from .loss import require_firewall
from .pauses import Pauses
from .shaping import bits_per_second


@dataclass(frozen=True)
class BurstRecipe:
    """A neighbour's bursts; their speed as a share of a link's, so that other rates see the same."""

    on_ms: float
    off_ms: float
    share: float

    def lasting(self, on_ms: float) -> BurstRecipe:
        """Longer or shorter bursts, and silences in proportion: the same traffic in all, another tail."""
        return replace(self, on_ms=on_ms, off_ms=self.off_ms * on_ms / self.on_ms)


@dataclass(frozen=True)
class Environment:
    """What goes wrong. ``tail``: P99/P50 of Gloo's all-reduce that the bursts are calibrated to give."""

    name: str
    summary: str
    loss: float = 0.0
    bursts: BurstRecipe | None = None
    tail: float | None = None
    pauses: Pauses | None = None
    late: Lateness = ON_TIME
    """Of processes that train; no other program heeds it."""
    stops: bool = False
    """One host's programs stop for some seconds, once."""
    crashes: bool = False
    """One host's programs are killed, and stay dead."""

    @property
    def is_fault(self) -> bool:
        """Whether it is one event that Gloo cannot live with, not a condition."""
        return self.stops or self.crashes


def _tail(name: str, ratio: float, on_ms: float, silence: float = 2.0, share: float = 0.90) -> Environment:
    """Bursts fill nine tenths of one random link for a third of the time (a silence is twice as long as a
    burst); their length makes the tail."""
    recipe = BurstRecipe(on_ms, silence * on_ms, share)
    summary = f"bursts of foreign traffic; Gloo's P99/P50 is calibrated to {ratio:g}"
    return Environment(name, summary, bursts=recipe, tail=ratio)


ENVIRONMENTS: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (
        Environment("quiet", "nothing else on the network"),
        Environment("loss1", "1 % of packets lost at random", loss=0.01),
        Environment("loss3", "3 % of packets lost at random", loss=0.03),
        _tail("tail1.5", 1.5, 50),
        _tail("tail3", 3.0, 200),
        _tail("tail5", 5.0, 600, silence=1.5, share=0.95),  # heavier: more traffic, too
        Environment(
            "straggler",
            "a random host's programs stand still for 0.3 s on average, every 3 s",
            pauses=Pauses(300, 2_700),
        ),
        Environment(
            "late",
            "training only: a random rank's process is 0.3 s late in 15 % of the steps",
            late=Lateness(0.15, 0.3),
        ),
        Environment("stop", "one host's programs are stopped for 3 s", stops=True),
        Environment("crash", "one host's programs are killed", crashes=True),
    )
}


def find_environment(name: str) -> Environment:
    """By its name; the error lists them."""
    if name not in ENVIRONMENTS:
        raise LabError(f"environment = {name!r} is not known: it must be one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name]


def require_tools(environment: Environment) -> None:
    """Raise LabError where this machine lacks what only this environment needs: better now than when ranks
    wait for it."""
    if environment.loss > 0:
        require_firewall(f"environment = {environment.name!r}")


def require_all_reduces(environment: Environment) -> None:
    """Raise LabError where programs that only reduce would notice nothing."""
    if environment.late != ON_TIME:
        raise LabError(
            f"environment = {environment.name!r} makes processes late that compute: it is for training; "
            "try `optireduce experiment tta`"
        )


def disturb(lab: Lab, environment: Environment, seed: int) -> None:
    """Begin with what lasts: loss, bursts, pauses. Faults are for whoever knows the right moment."""
    if environment.loss > 0:
        lab.set_loss(environment.loss)
    if environment.bursts is not None:
        if lab.rate is None:
            raise LabError(f"environment = {environment.name!r} needs links with a rate")
        recipe = environment.bursts
        lab.background(recipe.on_ms, recipe.off_ms, recipe.share * bits_per_second(lab.rate) / 1e6, seed)
    if environment.pauses is not None:
        lab.pause_hosts(environment.pauses, seed)


def calm(lab: Lab) -> None:
    """End all that :func:`disturb` began."""
    lab.clear_loss()
    lab.stop_background()
    lab.stop_pauses()
