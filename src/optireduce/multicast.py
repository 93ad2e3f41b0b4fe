"""Whether a group multicasts what it has reduced: every rank joins an IP multicast group and speaks to it,
and all agree on who heard whom. It is used where everybody hears everybody, or not at all."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ._core import Engine
from .config import Config
from .errors import ConnectError
from .exchange import Exchange, agree
from .membership import RawEvent

_logger = logging.getLogger("optireduce")

_PROBE_SECONDS = 5.0
"""How long ranks listen for each other; they are through with it as soon as everybody is heard. Where the
rendezvous loses packets, TCP lets one of them begin a second after the others."""
_FEWEST_RANKS = 3  # of two, each sends what it reduced to one other: nothing is saved
_SHOWN_RANKS = 8

# Organization-local scope (RFC 2365), whose Ethernet addresses are never those of link-local protocols.
_IPV4_GROUPS = ipaddress.IPv4Network("239.192.0.0/14")
# Transient, site-local (RFC 4291), with a group ID that is not assigned to anybody (RFC 3307).
_IPV6_GROUPS = ipaddress.IPv6Network("ff15::8000:0/97")


def group_address(seed: int, address: str) -> str:
    """The session's group, of the same family as a rank's address. Others may happen to have the same one:
    their ports differ, and their packets are not accepted."""
    groups = _IPV6_GROUPS if ipaddress.ip_address(address).version == 6 else _IPV4_GROUPS
    return str(groups[seed % groups.num_addresses])


def settle(
    engine: Engine,
    exchange: Exchange,
    config: Config,
    addresses: Sequence[str],
    seed: int,
    step_seconds: float,
) -> None:
    """Let the engine multicast if ``config`` wants it and it gets everywhere. The same on every rank.

    Where it does not, "on" raises ConnectError on every rank, and "auto" goes on without, with one line in
    rank 0's log.
    """
    if not _is_wanted(config.multicast, addresses):
        return
    trouble, ranks = _try(engine, exchange, config, addresses, seed, step_seconds)
    engine.use_group(not trouble)
    if trouble and config.multicast == "on":
        raise ConnectError(f'{trouble}; allow it, or set multicast to "auto" or "off"', ranks)
    if trouble and exchange.rank == 0:
        _logger.warning("%s: what is reduced goes to each rank singly", trouble)


def take_events(engine: Engine) -> list[RawEvent]:
    """The engine's membership events. The end of multicast is only logged."""
    events = engine.events()
    for kind, rank, _, operation in events:
        if kind == "unreached":
            _logger.warning(
                "multicast hardly reaches rank %d any more (operation %d): decisions go to each rank singly "
                "from now on",
                rank,
                operation,
            )
    return [event for event in events if event[0] != "unreached"]


def _is_wanted(multicast: str, addresses: Sequence[str]) -> bool:
    """On one host the kernel would copy packets instead of us, which saves nothing."""
    if multicast == "auto":
        return len(addresses) >= _FEWEST_RANKS and len(set(addresses)) > 1
    return multicast == "on" and len(addresses) > 1


def _try(
    engine: Engine,
    exchange: Exchange,
    config: Config,
    addresses: Sequence[str],
    seed: int,
    step_seconds: float,
) -> tuple[str, list[int]]:
    """Why it cannot be used and which ranks are concerned, as every rank sees it; "" if it can."""
    group = group_address(seed, addresses[0])
    opened = _attempt(exchange, lambda: engine.open_group(group, config.multicast_ttl), step_seconds)
    if failed := _failures(opened):
        return failed
    ports = [answer["value"] for answer in opened]
    # Everybody listens before anybody speaks.
    if failed := _failures(_attempt(exchange, lambda: engine.join_group(addresses, ports), step_seconds)):
        return failed
    unheard = agree(exchange, lambda: engine.probe_group(_PROBE_SECONDS), step_seconds + _PROBE_SECONDS)
    return _unheard_text(unheard)


def _attempt(exchange: Exchange, local: Callable[[], Any], timeout_seconds: float) -> list[dict[str, Any]]:
    """Everybody's outcome; here a failure is no reason to give up the group."""

    def outcome() -> dict[str, Any]:
        try:
            return {"value": local()}
        except (RuntimeError, ValueError) as error:  # as the core reports what the system refuses
            return {"error": str(error)}

    return agree(exchange, outcome, timeout_seconds)


def _failures(answers: Sequence[dict[str, Any]]) -> tuple[str, list[int]] | None:
    failed = [rank for rank, answer in enumerate(answers) if "error" in answer]
    if not failed:
        return None
    return f"rank {failed[0]} cannot multicast: {answers[failed[0]]['error']}", failed


def _unheard_text(unheard: Sequence[Sequence[int]]) -> tuple[str, list[int]]:
    """``unheard[i]``: the ranks that rank i did not hear."""
    deaf = [rank for rank, missed in enumerate(unheard) if missed]
    shown = [
        f"rank {rank} does not hear {_names(unheard[rank])}"
        for rank in sorted(deaf, key=lambda rank: -len(unheard[rank]))[:_SHOWN_RANKS]
    ]
    more = f" and {len(deaf) - _SHOWN_RANKS} more ranks" if len(deaf) > _SHOWN_RANKS else ""
    return (f"multicast does not get through: {'; '.join(shown)}{more}" if deaf else ""), deaf


def _names(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' * (len(ranks) > _SHOWN_RANKS)}"
