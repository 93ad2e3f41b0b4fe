"""Networks that the studies in virtual time compare things in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .sim_bursts import Neighbour
from .simulated_network import Link, Network, Port

RANKS = 8
_BURSTS_SECONDS = 600.0  # more than any loop takes; run_loop checks it


@dataclass(frozen=True)
class Environment:
    """Eight hosts at one switch."""

    name: str
    bits_per_second: float
    """Of every host's own interface, and of every port of the switch."""
    delay_seconds: float
    queue_bytes: int
    """Of a port: shallow ones are a few milliseconds."""
    loss: float = 0.0
    """Of each packet, whatever the load."""
    neighbour: Neighbour | None = None

    def network(self, seed: int, **protocol: Any) -> Network:
        """With settings of the protocol; equal seeds have equal bursts, whatever these are."""
        bursts = self.neighbour and self.neighbour.bursts(RANKS, _BURSTS_SECONDS, np.random.default_rng(seed))
        return Network(
            RANKS,
            seed=seed,
            link=Link(delay_seconds=self.delay_seconds, loss=self.loss),
            egress=Port(self.bits_per_second),
            ingress=Port(self.bits_per_second, self.queue_bytes),
            backgrounds=tuple(bursts or ()),
            coalesce=1.0,
            **protocol,
        )
