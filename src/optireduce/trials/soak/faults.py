"""What goes wrong during a chapter, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...lab import Lab, calm
from ...lab.pauses import Pauses
from ...lab.shaping import bits_per_second

_LOSS = 0.02
_BURST_ON_MS, _BURST_OFF_MS, _BURST_SHARE = 40.0, 200.0, 1.0  # of the link's rate
_PAUSES = Pauses(still_ms=150, between_ms=600)


@dataclass(frozen=True)
class Fault:
    """A name, and how it begins; :func:`calm` and resuming all hosts end it."""

    name: str
    begin: Callable[[Lab], None]


def _bursts(lab: Lab) -> None:
    assert lab.rate is not None
    lab.background(_BURST_ON_MS, _BURST_OFF_MS, _BURST_SHARE * bits_per_second(lab.rate) / 1e6)


def _both(lab: Lab) -> None:
    lab.set_loss(_LOSS)
    _bursts(lab)


ROTATION = (
    Fault("quiet", lambda lab: None),
    Fault("loss", lambda lab: lab.set_loss(_LOSS)),
    Fault("bursts", _bursts),
    Fault("pauses", lambda lab: lab.pause_hosts(_PAUSES)),
    Fault("loss and bursts", _both),
    Fault("stop", lambda lab: lab.stop_host(_last(lab))),
)
_OF_A_FIREWALL = ("loss", "loss and bursts")
# They take turns at the ends of chapters: the last rank is lost for good, and the others go on without it.
ENDINGS = (
    Fault("kill", lambda lab: lab.kill_host(_last(lab))),
    Fault("cut", lambda lab: lab.cut(_last(lab))),
)


def rotation(firewall: bool) -> tuple[Fault, ...]:
    """All faults, or those that a machine without a firewall can have."""
    return tuple(fault for fault in ROTATION if firewall or fault.name not in _OF_A_FIREWALL)


def ending(chapter: int) -> Fault:
    """Of a chapter, counted from 0. In another order from then on after two chapters: both kinds of chapter
    get both endings."""
    return ENDINGS[(chapter + chapter // 2) % len(ENDINGS)]


def end_fault(lab: Lab) -> None:
    """Whatever it was: the network is quiet and whole, and every host runs."""
    calm(lab)
    lab.resume_host(_last(lab))
    lab.restore(_last(lab))


def _last(lab: Lab) -> int:
    return len(lab.addresses) - 1
