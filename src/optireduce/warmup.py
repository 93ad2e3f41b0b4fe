"""How much more time the gradients of a training's first steps have.

Ranks agree on most of the gradient then, and much of it lies in few parameters. Where a replica lacks those
for a step, the norm of its gradient is another one, and clipping scales all of it otherwise than the others'
(docs/replicas.md). Later most of a gradient is noise, and what is missing changes little.
"""

from __future__ import annotations

import math

_FIRST_SLACK = 3.0
_TIGHTENING = 2  # times as many steps as the warm-up has


def slack_of(step: int, warmup_steps: int) -> float:
    """How many times the usual deadline the gradients of a step have, steps counted from 0.

    In the warm-up they have none (infinite). Then deadlines tighten from three times the usual one to the
    usual one.
    """
    if step < warmup_steps:
        return math.inf
    tightening = _TIGHTENING * warmup_steps
    left = warmup_steps + tightening - step
    return 1.0 + (_FIRST_SLACK - 1.0) * left / tightening if left > 0 else 1.0
