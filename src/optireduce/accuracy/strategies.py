"""What is compared: how replicas cope with data that does not come before the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..wire import Wire

Pattern = Literal["random", "tail", "bursts", "storms"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Hopeless = Literal["nothing", "contributions", "everything"]
HOPELESS: tuple[Hopeless, ...] = get_args(Hopeless)


@dataclass(frozen=True)
class Loss:
    """Which packets are lost, in both stages, and which of them cannot be repaired before the deadline."""

    pattern: Pattern
    share: float
    hopeless: Hopeless = "everything"
    """The protocol gives contributions up first and spends the time that is left on what was reduced."""


@dataclass(frozen=True)
class Strategy:
    """Settings of the transport, and what is done besides to keep replicas together."""

    name: str
    lossless: bool = False
    """The plain mean, without any transport: what all others are compared with."""
    repair: bool = True
    late_repair: bool = True
    shuffle: bool = True
    hadamard: bool = False
    """Rotate gradients before the all-reduce and back after it."""
    resync_steps: int | None = None
    """Owners send their parameters to all, a window each step, all of them in so many steps; over the same
    lossy network."""
    average_steps: int | None = None
    """Every so many steps the parameters are averaged, exactly."""
    wire: Wire = "fp32"
    """The form in which gradients travel."""


_PAPERS: dict[str, Any] = {"repair": False, "late_repair": False, "shuffle": False}

EXACT = Strategy("exact", lossless=True)
OURS = Strategy("ours", resync_steps=25, wire="bf16")  # the defaults, between hosts
PAPERS = Strategy("papers", **_PAPERS)

STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        EXACT,
        OURS,
        PAPERS,
        Strategy("papers+hadamard", **_PAPERS, hadamard=True),
        Strategy("no-repair+average50", late_repair=False, average_steps=50),
        Strategy("ours+fp32", resync_steps=25),
        Strategy("ours+int8", resync_steps=25, wire="int8"),
    )
}
