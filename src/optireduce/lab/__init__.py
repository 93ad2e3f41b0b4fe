"""A network of hosts on one Linux machine: namespaces on a switch, with shaped links, loss and bursts.

``with Lab(hosts=4, rate="200mbit") as lab: lab.run(0, ["ping", "-c1", lab.addresses[1]])``. Needs root; the
machine's own interfaces are never touched.
"""

from __future__ import annotations

from .environments import ENVIRONMENTS, Environment, calm, disturb, find_environment, require_tools
from .errors import LabError
from .lab import Lab
from .shaping import Link, Queue

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Lab",
    "LabError",
    "Link",
    "Queue",
    "calm",
    "disturb",
    "find_environment",
    "require_tools",
]
