"""Every knob in one place: meaning, unit (in the name), default, and what moving it costs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .errors import ConfigError

_PREFIX = "OPTIREDUCE_"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one group. Every field is also read from ``OPTIREDUCE_<FIELD>`` by :meth:`from_env`.

    All ranks of a group should use the same values. ``bounded``, ``bounded_min_bytes``, ``warmup_operations``
    and ``min_ranks`` must be the same everywhere: the group does not form otherwise.
    """

    interface: str = ""
    """Network interface whose address is used, e.g. ``eth0``. Empty: the one that routes to the master. Also
    read from ``OPTIREDUCE_SOCKET_IFNAME``, then ``GLOO_SOCKET_IFNAME``."""

    mtu: int = 0
    """Largest IP packet sent, in bytes. 0: the smallest path MTU of the group. Lower it where the path's true
    limit is hidden (tunnels that drop ICMP); smaller packets cost CPU."""

    window_bytes: int = 262_144
    """What one rank may have unanswered towards one peer. More hides delay on long paths, and overruns the
    peer's socket buffer if that is small: the peer's grant bounds it in any case."""

    receive_buffer_bytes: int = 1_048_576
    """Kernel receive buffer asked for, per peer. The kernel cuts it to net.core.rmem_max; less means smaller
    grants."""

    early_bytes: int = 67_108_864
    """Memory for packets of operations that this rank has not started yet. Too little makes peers send them
    again."""

    spin_seconds: float = 50e-6
    """How long a waiting thread polls before it sleeps. More saves wake-up delay, and burns CPU."""

    timeout_seconds: float | None = None
    """How long an operation may take, and how long ranks are waited for when the group forms. None: the
    process group's timeout, or 300 s for a Communicator."""

    connect_timeout_seconds: float = 10.0
    """How long peers may take to answer over UDP, once all ranks are there. Longer only delays the error that
    names a firewall."""

    linger_seconds: float = 5.0
    """How long close() goes on answering peers that still lack our last packets; it returns as soon as none
    does. Less may fail their last operation."""

    bounded: bool = True
    """Give long all-reduces a deadline: they end with what has arrived by then. False: every operation runs
    to completion, however long the slowest rank or path takes."""

    bounded_min_bytes: int = 65_536
    """All-reduces shorter than this run to completion, but for what is certainly a gradient (buckets through
    attach(), weighted means). Lower it and metrics or counters may be approximate; raise it and more
    operations wait for stragglers. With DDP on the backend a small last bucket waits for a dead rank: set it
    to 0 there, or use attach()."""

    warmup_operations: int = 20
    """Operations that run to completion before the first deadline, to learn what is usual here. More give a
    better first estimate, and leave training unprotected for longer."""

    warmup_steps: int = 20
    """With attach(): the gradients of so many steps run to completion, whatever ``warmup_operations`` says,
    and over twice as many more deadlines tighten from three times the usual one. In its first steps an
    optimizer moves parameters the furthest, so that a replica that loses a part of them is left behind: give
    it at least the steps in which your learning rate rises. More leave training unprotected for longer: a
    rank that dies during them ends it."""

    bound_percentile: float = 95.0
    """The deadline is this percentile of what operations took. Lower ends slow operations sooner, and loses
    more."""

    bound_least: float = 1.3
    """The deadline is never less than this multiple of the usual time (the median, but at most an
    eighth above the lower quartile). Lower makes a calm network lose data
    to small delays."""

    bound_most: float = 1.4
    """The deadline is never more than this multiple of the usual time. Higher loses less in bursts, and
    lets the slowest steps take longer."""

    repair: bool = True
    """Ask again for lost packets while there is time. False: the papers' best-effort transport, for
    comparison; what is lost stays lost. Exact operations repair in any case."""

    late_repair: bool = True
    """Fetch what was missing at a deadline afterwards, and add it to the next gradient of the same bucket
    (through attach() only, and not without ``repair``): replicas get the same updates, some one step later.
    Until then a share of the rank's own gradient stands in for it. False: what a rank missed is zero and
    stays missing there, and replicas drift apart."""

    shuffle: bool = True
    """Send the packets of operations with a deadline in another order each time, so that what comes too late
    is not always the same part of the model. False: in the order in which they lie in memory."""

    resync_steps: int = 25
    """With attach(..., optimizer=...): every parameter is sent again and adopted by all ranks once in so many
    steps, 1/N of it by each rank, a little in every step, while the forward pass leaves the links idle. Fewer
    keep replicas closer together and send more (25: 2 % of the traffic of float32 gradients, 4 % of
    bfloat16). 0: never, and they drift apart."""

    resync_optimizer: bool = False
    """Send the optimizer's state (momentum and the like) in the same way. Costs as much again for each of its
    tensors; measured, it changes little."""

    hadamard: Literal["off", "on", "auto"] = "auto"
    """Send gradients as coefficients of a randomized Hadamard transform, which spreads a loss over many
    entries. "auto": only where it helps: without late repair and resync, with an optimizer that does not
    divide by the size of past gradients (SGD), while more than 1 % is lost. Needs attach()."""

    wire: Literal["fp32", "bf16", "int8", "auto"] = "auto"
    """How float32 travels that may be approximate: all-reduces that may have a deadline. "bf16": half the
    bytes, rounded to nearest; "int8": about a quarter, rounded at random so that it is right on average. Both
    add in float32, and all ranks get the same. "auto": bf16 between hosts for what is certainly a gradient
    (buckets through attach(), weighted means), fp32 for everything else, and within one host, where
    rounding saves little."""

    auth: Literal["auto", "mac", "token"] = "auto"
    """What every packet proves. "mac": a SipHash tag over all of it, with a key of the group: who can read
    and send packets can neither change nor invent any; costs CPU for every byte. "token": a secret of the
    group, in clear, at no cost; keeps out only who cannot read packets. "auto": mac between hosts, where the
    network is slower than hashing, token when all ranks share one host."""

    multicast: Literal["off", "on", "auto"] = "off"
    """Send what was reduced once, to an IP multicast group, instead of once to each rank: a rank of 8 then
    sends 1.0 times its bucket instead of 1.75. Pays where hosts send more slowly than they receive, or the
    switch is the limit. "auto": between hosts, where every rank hears every other, else not; "on": that is
    required. Forming the group takes up to a second longer. "off" is the default because shared clouds seldom
    let it through, and Wi-Fi sends it at the lowest speed."""

    multicast_ttl: int = 1
    """How far multicast packets get: 1 stays in the subnet, each more passes one router that forwards
    them. More reaches hosts that did not ask for it where switches flood."""

    skip_above: float = 0.5
    """With attach(..., optimizer=...) or Session.should_step(): a step that lost more than this share of its
    gradient, on average over the ranks, is skipped on all ranks. 1: never."""

    halt_after: int = 10
    """So many skipped steps in a row end with TrainingHaltedError, which names ranks and links."""

    absent_after: int = 3
    """A rank that contributes nothing to so many operations in a row is no longer waited for, until it is
    back. Fewer spares deadlines spent on a dead rank, and gives up a slow one sooner."""

    min_ranks: int = 0
    """Fewer ranks than this, ourselves included, do not train on. 0: more than half; more than the group has:
    all of them. Fewer train on longer, on less data."""

    quorum_seconds: float = 30.0
    """Where fewer than ``min_ranks`` are there, an operation waits so long for more (half of its timeout at
    most), then it ends with TooFewRanksError. Long enough for a network or a machine that stands still for a
    while; longer tells later that a group is broken. 0: an error at once."""

    groups: int | Literal["auto"] = "auto"
    """Rows of a grid (grid.md): ranks exchange within their row and within their column instead of with all
    others, in three stages instead of two. 1: flat. The group's size must be a multiple of it. "auto": the
    ranks of a host make a row where all hosts have equally many, and more than one, so that they send the
    bucket through its link together instead of each; else flat below 128 ranks, and above rows are about as
    many as ranks in each. A grid waits longer for what is late (three deadlines, one after the other), and a
    dead rank costs its row more of the gradient."""

    operation_log: str = ""
    """File that gets one JSON object for each operation (fields: ``optireduce.operation_log``); ``{rank}`` in
    it becomes the rank. Empty: off. Costs a thread and some 20 microseconds an operation."""

    use_gso: bool = True
    """Let the kernel cut large sends into packets. Switch off only to find a driver's fault: costs most of
    the speed."""

    use_gro: bool = True
    """Let the kernel join received packets. As for use_gso."""

    drop: float = 0.0
    """Test impairment: share of outgoing packets thrown away."""

    duplicate: float = 0.0
    """Test impairment: share of outgoing packets sent twice."""

    reorder: float = 0.0
    """Test impairment: share of outgoing packets held back behind later ones."""

    impairment_seed: int = 0
    """Seed of the impairment, so that a failure can be repeated."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))
        if self.bound_least > self.bound_most:
            raise ConfigError(
                f"bound_least = {self.bound_least!r} is not usable: it must be at most bound_most = "
                f"{self.bound_most!r}"
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Config:
        """Settings from the environment; an explicit argument wins over its variable."""
        environ = os.environ if environ is None else environ
        known = {field.name for field in fields(cls)}
        for name in explicit:
            if name not in known:
                raise ConfigError(f"unknown setting {name!r}; there are: {', '.join(sorted(known))}")
        for name in known - explicit.keys():
            if found := _lookup(name, environ):
                explicit[name] = _parse(*found)
        return cls(**explicit)


# What each field must be. Booleans and texts need no limits.
_INTEGERS = {
    "mtu": (0, 65_536),
    "window_bytes": (4_096, 2**30),
    "receive_buffer_bytes": (16_384, 2**30),
    "early_bytes": (65_536, 2**40),
    "bounded_min_bytes": (0, 2**62),
    "warmup_operations": (3, 10**6),
    "warmup_steps": (0, 10**9),
    "absent_after": (1, 10**6),
    "resync_steps": (0, 10**9),
    "halt_after": (1, 10**9),
    "min_ranks": (0, 65_535),
    "multicast_ttl": (1, 255),
    "impairment_seed": (0, 2**63 - 1),
}
_INTEGERS_OR_AUTO = {"groups": (1, 32_767)}
_SMALLEST_MTU = 576  # what every IPv4 host must take (RFC 791)
_SECONDS = {
    "spin_seconds": (0.0, 1.0),
    "connect_timeout_seconds": (0.1, 3_600.0),
    "linger_seconds": (0.0, 600.0),
    "quorum_seconds": (0.0, 1e7),
}
_OPTIONAL_SECONDS = {"timeout_seconds": (0.001, 1e7)}
_PROBABILITIES = {
    "drop": (0.0, 0.95),
    "duplicate": (0.0, 1.0),
    "reorder": (0.0, 1.0),
    "skip_above": (0.0, 1.0),
}
_RATIOS = {"bound_percentile": (50.0, 100.0), "bound_least": (1.0, 10.0), "bound_most": (1.0, 10.0)}
_FLOATS = _SECONDS | _OPTIONAL_SECONDS | _PROBABILITIES | _RATIOS
_BOOLEANS = {"bounded", "repair", "late_repair", "shuffle", "resync_optimizer", "use_gso", "use_gro"}
_CHOICES = {
    "hadamard": ("off", "on", "auto"),
    "wire": ("fp32", "bf16", "int8", "auto"),
    "auth": ("auto", "mac", "token"),
    "multicast": ("off", "on", "auto"),
}
_TEXTS = {"interface", "operation_log"}


def _check(name: str, value: object) -> None:
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        if name == "mtu":
            good = good and (value == 0 or value >= _SMALLEST_MTU)  # type: ignore[operator]
            _require(good, name, value, f"0 (find out) or an integer from {_SMALLEST_MTU} to {high}")
        _require(good, name, value, f"an integer from {low} to {high}")
    elif name in _FLOATS:
        if value is None and name in _OPTIONAL_SECONDS:
            return
        least, most = _FLOATS[name]
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        _require(good and least <= value <= most, name, value, f"a number from {least:g} to {most:g}")  # type: ignore[operator]
    elif name in _BOOLEANS:
        _require(isinstance(value, bool), name, value, "True or False")
    elif name in _INTEGERS_OR_AUTO:
        low, high = _INTEGERS_OR_AUTO[name]
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _require(value == "auto" or good, name, value, f"'auto' or an integer from {low} to {high}")
    elif name in _CHOICES:
        _require(value in _CHOICES[name], name, value, "one of " + ", ".join(map(repr, _CHOICES[name])))
    else:
        _require(isinstance(value, str), name, value, "a string")


def _require(good: bool, name: str, value: object, right: str) -> None:
    if not good:
        raise ConfigError(f"{name} = {value!r} is not usable: it must be {right}")


def _lookup(name: str, environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The field, the variable that sets it, and its text; None where no variable is set."""
    variables = [_PREFIX + name.upper()]
    if name == "interface":
        variables += [_PREFIX + "SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"]
    for variable in variables:
        if text := environ.get(variable, "").strip():
            return name, variable, text
    return None


def _parse(name: str, variable: str, text: str) -> object:
    if name in _BOOLEANS:
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"{variable}={text!r} is not usable: {name} must be one of 1, 0, true, false")
        return text.lower() in _TRUE
    if name == "interface":
        return text.split(",")[0].strip()  # Gloo takes a list; the first one is the one to use
    if name in _TEXTS or name in _CHOICES:
        _check(name, text)
        return text
    if name in _INTEGERS_OR_AUTO and text == "auto":
        return text
    wanted, convert = ("an integer", int) if name in _INTEGERS | _INTEGERS_OR_AUTO else ("a number", float)
    try:
        value = convert(text)
        _check(name, value)
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None
    except ValueError:
        raise ConfigError(f"{variable}={text!r} is not usable: {name} must be {wanted}") from None
    return value
