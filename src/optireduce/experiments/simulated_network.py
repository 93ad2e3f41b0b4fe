"""What is simulated: the network between the ranks, and what goes wrong with it and with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeVar

from .. import _core
from ..config import Config
from ..grid import rows_for

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """One direction between two ranks. Probabilities are per packet, times in seconds."""

    bits_per_second: float = 0.0
    """0: unlimited."""
    delay_seconds: float = 50e-6
    jitter_seconds: float = 0.0
    """Added to the delay, uniform from 0; reorders packets."""
    loss: float = 0.0
    reorder: float = 0.0
    reorder_seconds: float = 500e-6
    """How much longer a reordered packet takes, at most."""
    duplicate: float = 0.0
    queue_bytes: int = 0
    """Bytes that may wait for the link; more are dropped. 0: no limit."""
    spike: float = 0.0
    """Per batch of packets: that the link stands still for ``spike_seconds``, and then lets all that waits
    pass at once."""
    spike_seconds: float = 5e-3


@dataclass(frozen=True)
class Port:
    """What all links of a rank share, in one direction."""

    bits_per_second: float = 0.0
    """0: unlimited, there is no port."""
    queue_bytes: int = 0
    """Bytes that may wait for the port; more are dropped. 0: no limit."""
    burst_bytes: int = 0
    """A token bucket: so much passes at once after a pause."""
    policer: bool = False
    """What cannot pass at once is dropped; nothing waits."""
    whole_batches: bool = False
    """A batch of packets that was sent by one call passes, waits and is dropped as one."""


class Background(NamedTuple):
    """In this time others send so much through a rank's ingress port, whether or not it has room."""

    rank: int
    begin_seconds: float
    end_seconds: float
    bits_per_second: float


class Cut(NamedTuple):
    """Nothing that ``source`` sends to ``destination`` in this time arrives."""

    source: int
    destination: int
    begin_seconds: float
    end_seconds: float


class Pause(NamedTuple):
    """The rank does nothing in this time: its packets wait."""

    rank: int
    begin_seconds: float
    end_seconds: float


class GroupOutage(NamedTuple):
    """What is multicast in this time does not reach the rank: a switch has forgotten it."""

    rank: int
    begin_seconds: float
    end_seconds: float


class Crash(NamedTuple):
    """From then on the rank does nothing at all. What it has sent before still arrives."""

    rank: int
    at_seconds: float


@dataclass(frozen=True)
class ForcedLoss:
    """Packets that are lost by a pattern: another choice for each operation, stage and pair of ranks. Packets
    that are hopeless stay lost until their operation has ended at the receiver, however often they are sent;
    all others can be repaired. The first ``Network.warmup_operations`` operations are spared."""

    pattern: Literal["random", "tail", "bursts", "storms"] = "random"
    """Any packets; the last ones that each rank sends to each other; runs of packets; or, in storms, a tenth
    of the receivers of each operation lose ten times the share, and all others nothing."""
    share: float = 0.0
    hopeless: Literal["nothing", "contributions", "everything"] = "everything"
    burst_packets: float = 8.0
    """Mean length of a run."""
    least_elements: int = 0
    """Shorter operations are spared: they have time to repair everything."""


@dataclass(frozen=True)
class Hostile:
    """Packets that should change nothing, sent beside the genuine ones. Probabilities are per genuine
    packet."""

    forge: float = 0.0
    """A stranger's: a wrong seal, any bytes."""
    truncate: float = 0.0
    """A member's: the right seal, cut short."""
    mangle: float = 0.0
    """A member's: the right seal, one field that cannot be right."""
    replay: float = 0.0
    """A genuine packet again, up to ``replay_seconds`` later."""
    replay_seconds: float = 0.05
    tamper: float = 0.0
    """A genuine packet with one bit changed on the way; needs ``auth="mac"``."""


@dataclass(frozen=True)
class Network:
    """What is simulated. Every option has a default; ``link`` describes all links but those in ``links``."""

    ranks: int
    seed: int = 0
    groups: int | Literal["auto"] = 1
    """Rows of a grid of ranks, all on hosts of their own; 1: flat."""
    link: Link = Link()
    links: Mapping[tuple[int, int], Link] | None = None
    """Other links, by source and destination."""
    egress: Port = Port()
    """Every rank's own interface. Without a limit its queue is the host's own, which does not drop."""
    ingress: Port = Port()
    """The switch's port towards every rank."""
    other_egress: Mapping[int, Port] | None = None
    """Instead, for some ranks."""
    other_ingress: Mapping[int, Port] | None = None
    """Instead, for some ranks."""
    backgrounds: Iterable[Background] = ()
    forced_loss: ForcedLoss = ForcedLoss()
    hostile: Hostile = Hostile()
    cuts: Iterable[Cut] = ()
    pauses: Iterable[Pause] = ()
    crashes: Iterable[Crash] = ()
    clock_offset_seconds: Mapping[int, float] | None = None
    """How much more a rank's clock shows than the network's at the beginning; 0 or more."""
    clock_drift_ppm: Mapping[int, float] | None = None
    """How many microseconds a rank's clock gains each second; negative: it loses them."""
    coalesce: float = 0.5
    """Share of batches that arrive in one piece, as with GRO. 1 simulates fastest."""
    wake_seconds: float = 0.0
    """A rank looks at its packets up to so long after the first one came."""
    receive_buffer_bytes: int = 0
    """Bytes that may wait at a rank; more are dropped. 0: no limit."""
    auth: Literal["token", "mac"] = "token"
    """What packets prove, as in :class:`Config`. Tags make a simulation slower."""
    payload_bytes: int = 1408
    window_bytes: int = 256 * 1024
    early_bytes: int = 64 * 1024 * 1024
    log_bytes: int = 256 * 1024 * 1024
    delivery: Literal["carry", "best-effort"] = "carry"
    """This and the next fields: as in :class:`Config`, and with the same limits."""
    max_lag: int = 2
    exclude_at_most: float = 0.05
    fixed_membership: bool = False
    min_ranks: int = 0
    quorum_seconds: float = 30.0
    exact_silence_seconds: float = 10.0
    shuffle: bool = True
    warmup_operations: int = 20
    bound_percentile: float = 95.0
    bound_least: float = 1.3
    bound_most: float = 1.4
    multicast: bool = False
    """Send each decision once, to all: it passes the sender's egress port once."""
    group_outages: Iterable[GroupOutage] = ()
    max_events: int = 100_000_000
    """A run that takes more ends with RuntimeError."""


# Wider limits than the settings of the same names, or another meaning.
_UNLIKE_CONFIG = {"receive_buffer_bytes", "window_bytes", "early_bytes", "log_bytes", "multicast", "auth"}


def core_options(network: Network) -> _core.SimulationOptions:
    """What the core is told of a Network; ValueError names a value that cannot work."""
    options = _core.SimulationOptions()
    shared = {field.name for field in fields(Config)} & vars(network).keys() - _UNLIKE_CONFIG
    config = Config(**{name: getattr(network, name) for name in shared})  # checks them
    for name, value in vars(network).items():
        if isinstance(value, (int, float, str)) and hasattr(options, name):
            setattr(options, name, value)
    options.rows = rows_for(network.groups, [str(rank) for rank in range(network.ranks)])
    options.min_ranks = min(config.min_ranks, network.ranks)  # as for a real group
    forced = network.forced_loss
    options.set_forced_loss(
        forced.pattern,
        forced.hopeless,
        forced.share,
        forced.burst_packets,
        network.warmup_operations,
        forced.least_elements,
    )
    hostile = network.hostile
    options.set_hostile(*(getattr(hostile, field.name) for field in fields(hostile)))
    _add_paths(network, options)
    _add_rank_faults(network, options)
    return options


def _add_paths(network: Network, options: _core.SimulationOptions) -> None:
    options.link = _filled(_core.LinkOptions(), network.link)
    options.egress = _filled(_core.PortOptions(), network.egress)
    options.ingress = _filled(_core.PortOptions(), network.ingress)
    for (source, destination), link in (network.links or {}).items():
        options.set_link(source, destination, _filled(_core.LinkOptions(), link))
    for rank, port in (network.other_egress or {}).items():
        options.set_egress(rank, _filled(_core.PortOptions(), port))
    for rank, port in (network.other_ingress or {}).items():
        options.set_ingress(rank, _filled(_core.PortOptions(), port))
    for background in network.backgrounds:
        options.add_background(*background)
    for cut in network.cuts:
        options.add_cut(*cut)
    for outage in network.group_outages:
        options.add_group_outage(*outage)


def _add_rank_faults(network: Network, options: _core.SimulationOptions) -> None:
    for pause in network.pauses:
        options.add_pause(*pause)
    for crash in network.crashes:
        options.add_crash(*crash)
    for rank, offset in (network.clock_offset_seconds or {}).items():
        options.set_clock_offset(rank, offset)
    for rank, drift in (network.clock_drift_ppm or {}).items():
        options.set_clock_drift(rank, drift)


def _filled(options: T, values: Link | Port) -> T:
    """The core's twin of ``values``, which has the same fields."""
    for field in fields(values):
        setattr(options, field.name, getattr(values, field.name))
    return options
