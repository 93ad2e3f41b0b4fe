"""Random loss of packets that arrive at a host, by its own firewall. Loopback is left alone."""

from __future__ import annotations

from .errors import LabError
from .namespaces import Namespace

_CHAIN = "OPTIREDUCE-LOSS"


def prepare(namespace: Namespace) -> None:
    """A chain of our own, so that rules of others stay when loss is set and cleared."""
    _iptables(namespace, "-N", _CHAIN)
    _iptables(namespace, "-I", "INPUT", "!", "-i", "lo", "-j", _CHAIN)


def set_loss(namespace: Namespace, probability: float) -> None:
    """Drop each arriving packet with this probability, whatever its protocol; counting starts at zero."""
    if not 0.0 <= probability <= 1.0:
        raise LabError(f"probability = {probability!r} is not usable: it must be a number from 0 to 1")
    clear_loss(namespace)
    if probability > 0.0:
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{probability:.9f}")
        _iptables(namespace, "-A", _CHAIN, *chance, "-j", "DROP")


def clear_loss(namespace: Namespace) -> None:
    """Let everything through again."""
    _iptables(namespace, "-F", _CHAIN)


def dropped_packets(namespace: Namespace) -> int:
    """Packets dropped since the loss was set."""
    lines = _iptables(namespace, "-L", _CHAIN, "-n", "-v", "-x").splitlines()
    return sum(int(line.split()[0]) for line in lines if " DROP " in line)


def _iptables(namespace: Namespace, *arguments: str) -> str:
    return namespace.call("iptables", "-w", *arguments)
