"""What a switch's port drops when several senders share it: the loss that incast adds.

Time goes in slots of one packet. Senders send bursts back to back at the port's own speed; the port passes on
one packet a slot, holds a few, and drops the rest. One sender alone can never fill it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Slots: TypeAlias = npt.NDArray[np.int64]


def overflow_share(
    senders: int, load: float, burst: int, queue: int, slots: int, rng: np.random.Generator
) -> float:
    """Of all packets, the share that is dropped. ``load``: packets a slot from all senders together, of whom
    none can send more than one."""
    arrivals = np.zeros(slots, np.int64)
    for _ in range(senders):
        arrivals += _bursts(load / senders, burst, slots, rng)
    return dropped(arrivals, queue) / max(1, int(arrivals.sum()))


def dropped(arrivals: Slots, queue: int) -> int:
    """How many packets find no room in a port that holds ``queue`` of them and passes on one each slot."""
    waiting = lost = 0
    for count in arrivals.tolist():
        over = max(0, waiting + count - queue)
        lost += over
        waiting = max(0, waiting + count - over - 1)
    return lost


def _bursts(load: float, burst: int, slots: int, rng: np.random.Generator) -> Slots:
    """One sender: 1 in every slot in which it sends. Gaps between bursts are exponential."""
    gap = burst * (1 / load - 1)
    enough = int(2 * slots / (burst + gap)) + 10
    gaps = np.rint(rng.exponential(gap, enough)).astype(np.int64)
    begins = np.cumsum(gaps) + burst * np.arange(enough)
    sending = np.zeros(slots, np.int64)
    for begin in begins[begins < slots]:
        sending[begin : begin + burst] = 1
    return sending
