"""A network of hosts on one Linux machine: namespaces on a switch, with shaped links, loss and bursts.

``with Lab(hosts=4, rate="200mbit") as lab: lab.run(0, ["ping", "-c1", lab.addresses[1]])``. Needs root; the
machine's own interfaces are never touched.
"""

from __future__ import annotations

from .environments import (
    ENVIRONMENTS,
    Environment,
    calm,
    disturb,
    find_environment,
    require_all_reduces,
    require_tools,
)
from .errors import LabError
from .lab import SWITCH_QUEUE, Lab
from .lateness import ON_TIME, Lateness
from .shaping import Link, Queue

__all__ = [
    "ENVIRONMENTS",
    "ON_TIME",
    "SWITCH_QUEUE",
    "Environment",
    "Lab",
    "LabError",
    "Lateness",
    "Link",
    "Queue",
    "calm",
    "disturb",
    "find_environment",
    "require_all_reduces",
    "require_tools",
]
