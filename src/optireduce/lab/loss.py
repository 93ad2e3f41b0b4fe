"""Random loss of packets that arrive at a host, by its own firewall. Loopback is left alone.

The one part of a lab that needs `iptables`: a machine without it can have every other lab.
"""

from __future__ import annotations

import shutil

from .errors import LabError
from .namespaces import Namespace

_TOOL = "iptables"
_CHAIN = "OPTIREDUCE-LOSS"


def require_firewall(purpose: str) -> None:
    """Raise LabError where there can be no random loss; ``purpose`` is what it was wanted for."""
    if shutil.which(_TOOL) is None:
        raise LabError(f"{purpose} needs the program {_TOOL!r}")


class RandomLoss:
    """At one host. The firewall stays untouched until something is to be lost."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._has_chain = False

    def set(self, probability: float) -> None:
        """Drop each arriving packet with this probability, whatever its protocol; counting starts at zero."""
        if not 0.0 <= probability <= 1.0:
            raise LabError(f"probability = {probability!r} is not usable: it must be a number from 0 to 1")
        self.clear()
        if probability > 0.0:
            self._make_chain()
            chance = ("-m", "statistic", "--mode", "random", "--probability", f"{probability:.9f}")
            self._iptables("-A", _CHAIN, *chance, "-j", "DROP")

    def clear(self) -> None:
        """Let everything through again."""
        if self._has_chain:
            self._iptables("-F", _CHAIN)

    def dropped_packets(self) -> int:
        """Since the loss was set."""
        if not self._has_chain:
            return 0
        lines = self._iptables("-L", _CHAIN, "-n", "-v", "-x").splitlines()
        return sum(int(line.split()[0]) for line in lines if " DROP " in line)

    def _make_chain(self) -> None:
        """One of our own, so that rules of others stay when loss is set and cleared."""
        if not self._has_chain:
            require_firewall("random loss")
            self._iptables("-N", _CHAIN)
            self._iptables("-I", "INPUT", "!", "-i", "lo", "-j", _CHAIN)
            self._has_chain = True

    def _iptables(self, *arguments: str) -> str:
        return self._namespace.call(_TOOL, "-w", *arguments)
