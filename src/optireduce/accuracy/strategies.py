"""What is compared: how gradients are averaged when part of the data misses the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..wire import Wire

Pattern = Literal["random", "tail", "bursts", "storms"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Hopeless = Literal["nothing", "contributions", "everything"]
HOPELESS: tuple[Hopeless, ...] = get_args(Hopeless)
Delivery = Literal["carry", "best-effort"]


@dataclass(frozen=True)
class Loss:
    """Which packets are lost, in both stages, and which of them cannot be repaired before the deadline."""

    pattern: Pattern
    share: float
    hopeless: Hopeless = "everything"
    """With ``carry`` a decision is sent until it arrives: there "everything" means contributions."""


@dataclass(frozen=True)
class Strategy:
    """Settings of the transport."""

    name: str
    lossless: bool = False
    """The plain mean, without any transport: what all others are compared with."""
    delivery: Delivery = "carry"
    shuffle: bool = True
    hadamard: bool = False
    """Rotate gradients before the all-reduce and back after it."""
    wire: Wire = "fp32"
    """The form in which gradients travel."""

    @property
    def carries(self) -> bool:
        """Whether an excluded contribution is added to the next one."""
        return not self.lossless and self.delivery == "carry"


_PAPERS: dict[str, Any] = {"delivery": "best-effort", "shuffle": False}

EXACT = Strategy("exact", lossless=True)
CARRY = Strategy("carry")
PAPERS = Strategy("papers", **_PAPERS)

STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        EXACT,
        CARRY,
        Strategy("carry+bf16", wire="bf16"),  # the default between hosts
        PAPERS,
        Strategy("papers+hadamard", **_PAPERS, hadamard=True),
    )
}
