"""Every knob in one place: meaning, unit (in the name), default, and what moving it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .errors import ConfigError

_PREFIX = "OPTIREDUCE_"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


# Settings of earlier versions, and why they are gone.
_GONE = {
    "bounded_min_bytes": "only gradients through attach() have a deadline, whatever their size",
    "warmup_steps": "ranks always end a step with the same gradients, so the first steps need no protection",
    "repair": "lost packets are always sent again, except with delivery = 'best-effort'",
    "late_repair": "an excluded contribution is always carried into the next step (delivery = 'carry')",
    "resync_steps": "replicas are equal to the bit, so there is nothing to resynchronize",
    "resync_optimizer": "optimizer states are equal to the bit, so there is nothing to resynchronize",
    "absent_after": "a rank leaves the view when its engine is silent, not after missed operations",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one group. :meth:`from_env` also reads every field from ``OPTIREDUCE_<FIELD>``.

    All ranks of a group should use the same values. The group does not form if ranks disagree on a setting
    that decides what an operation means, such as ``bounded``, ``delivery``, ``max_lag`` or ``wire``.
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

    log_bytes: int = 268_435_456
    """Memory for decisions that members behind this rank may still ask for. Too little makes this rank wait
    for them sooner than ``max_lag`` says."""

    spin_seconds: float = 50e-6
    """How long a waiting thread polls before it sleeps. More saves wake-up delay, and burns CPU."""

    timeout_seconds: float | None = None
    """How long an operation may take, and how long ranks are waited for when the group forms. None: the
    process group's timeout, or 300 s for a Communicator."""

    connect_timeout_seconds: float = 10.0
    """How long peers may take to answer over UDP, once all ranks are there. Longer only delays the error that
    names a firewall."""

    linger_seconds: float = 30.0
    """How long close() goes on answering peers that still lack this rank's last packets. It returns as soon
    as no peer lacks any. Less may fail their last operation."""

    bounded: bool | Literal["all"] = True
    """Give gradients through attach() a deadline, also those that a Budget averages. Contributions that
    arrive later are excluded from the mean, and ``delivery`` says what becomes of them. "all": also
    all-reduces of the backend and of a Communicator that name a stream, so that a rank's late contribution is
    added to its next one to the same values; needs ``delivery="carry"``. False: gradients wait for every
    rank. Every other operation (collectives without a stream, weighted means in a grid, groups of more than
    64 ranks) is exact in any case."""

    delivery: Literal["carry", "best-effort"] = "carry"
    """"carry": all ranks get the same result, bit by bit, and an excluded contribution is added to the same
    rank's next one. "best-effort": the papers' transport, for comparison: both stages end at a deadline,
    missing values are zero, lost packets are not sent again, and replicas drift apart."""

    max_lag: int = 2
    """A rank may be so many training steps behind before the others wait for it. More hides longer pauses of
    a rank, and costs memory for each step (``log_bytes``)."""

    exclude_at_most: float = 0.05
    """The deadline is the shortest one that excludes at most this share of the contributions over the last 60
    steps. More ends slow steps sooner, and applies more of the gradient a step late."""

    exact_silence_seconds: float = 10.0
    """An engine that is silent for so long during an exact operation, or any where membership is fixed, fails
    the operation on all ranks. Less tells sooner that a rank is dead, and fails operations on machines that
    stand still for a moment."""

    warmup_operations: int = 20
    """Best effort only: operations without a deadline at the beginning, to learn what is usual."""

    bound_percentile: float = 95.0
    """Best effort only: the deadline is this percentile of what operations took."""

    bound_least: float = 1.3
    """Best effort only: the deadline is at least this multiple of the usual time."""

    bound_most: float = 1.4
    """Best effort only: the deadline is at most this multiple of the usual time."""

    shuffle: bool = True
    """Send the packets of operations with a deadline in another order each time, so that late packets are not
    always the same part of the model. False: in the order in which they lie in memory."""

    hadamard: Literal["off", "on", "auto"] = "auto"
    """Send gradients as coefficients of a randomized Hadamard transform, which spreads a loss over many
    entries. Needs attach() and ``delivery="best-effort"``: otherwise nothing is lost. "auto": with best
    effort, unless the optimizer divides by the size of past gradients (Adam)."""

    wire: Literal["fp32", "bf16", "int8", "auto"] = "auto"
    """How float32 gradients of attach() travel. "bf16": half the bytes, rounded to nearest; "int8": about a
    quarter, rounded at random so that it is right on average. Both add in float32, and all ranks get the
    same. "auto": bf16 between hosts; fp32 within one host, where rounding saves little. All other operations
    travel as they are."""

    auth: Literal["auto", "mac", "token"] = "auto"
    """What every packet proves. "mac": a SipHash tag with a key of the group, which nobody else can make;
    costs CPU for every byte. "token": a secret of the group, in clear, at no cost; keeps out only those who
    cannot read packets. "auto": mac between hosts, token when all ranks share one host."""

    multicast: Literal["off", "on", "auto"] = "off"
    """Send each decision once, to an IP multicast group, instead of once to each rank: a rank of 8 then sends
    1.0 times its bucket instead of 1.75. Pays where hosts send more slowly than they receive. "auto": between
    hosts, where every rank hears every other; "on": that is required. "off" is the default because shared
    clouds seldom let it through, and Wi-Fi sends it at the lowest speed."""

    multicast_ttl: int = 1
    """How far multicast packets get: 1 stays in the subnet, each more passes one router that forwards
    them. More reaches hosts that did not ask for it where switches flood."""

    skip_above: float = 1.0
    """With attach(..., optimizer=...) or Session.should_step(): all ranks skip a step that excludes more than
    this share of the contributions. The included contributions of a skipped step are dropped. 1: never."""

    halt_after: int = 10
    """So many skipped steps in a row end with TrainingHaltedError, which names the excluded ranks."""

    min_ranks: int = 0
    """A view with fewer ranks than this does not train on. 0: more than half of the group; more than the
    group has: all of them. Fewer train on longer, on less data."""

    quorum_seconds: float = 30.0
    """With fewer than ``min_ranks`` ranks, an operation waits so long for more (half of its timeout at most),
    then it ends with TooFewRanksError. Longer survives longer network cuts. 0: an error at once."""

    rejoin_pause_seconds: float = 0.5
    """How long the group stands still at one step boundary for a rank that was left behind again after a
    snapshot. Longer lets a slower rank return, and costs every rank the wait. 0: never."""

    check_parameters: bool = True
    """Hash 1/64 of the parameters before each step of attach(), and compare the ranks. A difference is logged
    once. Nothing waits for it. Parameters on a GPU are not looked at, and nothing is with best effort."""

    mend_differences: bool = False
    """A rank whose parameters differ from those of more than half of the ranks takes over their parameters
    and optimizer state, and all wait for that. Needs attach() with the optimizer. False: only say so."""

    groups: int | Literal["auto"] = "auto"
    """Rows of a grid (grid.md): ranks exchange within their row and within their column instead of with all
    others. 1: flat. The group's size must be a multiple of it. "auto": the ranks of a host make a row where
    all hosts have equally many, and more than one; else flat below 128 ranks, and above rows are about as
    many as ranks in each."""

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

    def __new__(cls, **settings: Any) -> Config:
        """Refuse settings of earlier versions with the reason."""
        for name in settings:
            _refuse_gone(name, name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))
        require(
            self.bound_least <= self.bound_most,
            "bound_least",
            self.bound_least,
            f"at most bound_most = {self.bound_most!r}",
        )
        require(
            self.bounded != "all" or self.delivery == "carry",
            "bounded",
            self.bounded,
            "True or False with delivery = 'best-effort', which carries nothing into the next call",
        )
        require(
            self.hadamard != "on" or self.delivery == "best-effort",
            "hadamard",
            self.hadamard,
            "'off' or 'auto' with delivery = 'carry', which loses nothing that a transform could spread",
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Config:
        """Settings from the environment; an explicit argument wins over its variable."""
        environ = os.environ if environ is None else environ
        known = {field.name for field in fields(cls)}
        for name in _GONE:
            if environ.get(variable := _PREFIX + name.upper(), "").strip():
                _refuse_gone(name, variable)
        for name in explicit:
            if name not in known | _GONE.keys():
                raise ConfigError(f"unknown setting {name!r}; there are: {', '.join(sorted(known))}")
        for name in known - explicit.keys():
            if found := _lookup(name, environ):
                explicit[name] = _parse(*found)
        return cls(**explicit)


# Limits of numbers, integers for integers. Texts and booleans have none.
_LIMITS: dict[str, tuple[float, float]] = {
    "mtu": (0, 65_536),
    "window_bytes": (4_096, 2**30),
    "receive_buffer_bytes": (16_384, 2**30),
    "early_bytes": (65_536, 2**40),
    "log_bytes": (65_536, 2**40),
    "max_lag": (1, 1_000),
    "warmup_operations": (3, 10**6),
    "halt_after": (1, 10**9),
    "min_ranks": (0, 65_535),
    "multicast_ttl": (1, 255),
    "impairment_seed": (0, 2**63 - 1),
    "groups": (1, 32_767),
    "spin_seconds": (0.0, 1.0),
    "timeout_seconds": (0.001, 1e7),
    "connect_timeout_seconds": (0.1, 3_600.0),
    "linger_seconds": (0.0, 600.0),
    "quorum_seconds": (0.0, 1e7),
    "rejoin_pause_seconds": (0.0, 60.0),
    "exact_silence_seconds": (0.05, 1e7),
    "drop": (0.0, 0.95),
    "duplicate": (0.0, 1.0),
    "reorder": (0.0, 1.0),
    "skip_above": (0.0, 1.0),
    "exclude_at_most": (0.0, 1.0),
    "bound_percentile": (50.0, 100.0),
    "bound_least": (1.0, 10.0),
    "bound_most": (1.0, 10.0),
}
_SMALLEST_MTU = 576  # what every IPv4 host must take (RFC 791)
_CHOICES = {
    "delivery": ("carry", "best-effort"),
    "hadamard": ("off", "on", "auto"),
    "wire": ("fp32", "bf16", "int8", "auto"),
    "auth": ("auto", "mac", "token"),
    "multicast": ("off", "on", "auto"),
}
_ALSO = {"timeout_seconds": None, "groups": "auto", "bounded": "all"}  # besides a number, or True and False
_BOOLEANS = {"bounded", "check_parameters", "mend_differences", "shuffle", "use_gso", "use_gro"}


def _check(name: str, value: Any) -> None:
    if name in _CHOICES:
        require(value in _CHOICES[name], name, value, "one of " + ", ".join(map(repr, _CHOICES[name])))
    elif name in _LIMITS and not (name in _ALSO and value == _ALSO[name]):
        low, high = _LIMITS[name]
        kind = int if isinstance(low, int) else (int, float)
        good = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
        text = f"an integer from {low} to {high}" if kind is int else f"a number from {low:g} to {high:g}"
        if name == "groups":
            text = f"'auto' or {text}"
        if name == "mtu":
            good = good and (value == 0 or value >= _SMALLEST_MTU)
            text = f"0 (find out) or an integer from {_SMALLEST_MTU} to {high}"
        require(good, name, value, text)
    elif name in _BOOLEANS:
        also = _ALSO.get(name)
        text = "True or False" if also is None else f"True, False or {also!r}"
        require(isinstance(value, bool) or (also is not None and value == also), name, value, text)
    elif name not in _LIMITS:
        require(isinstance(value, str), name, value, "a string")


def _refuse_gone(name: str, shown: str) -> None:
    if name in _GONE:
        raise ConfigError(f"{shown} is no longer a setting: {_GONE[name]}; remove it")


def require(good: bool, name: str, value: object, right: str) -> None:
    """ConfigError names the setting, its value and what would be right."""
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
        also = _ALSO.get(name)
        if also is not None and text.lower() == also:
            return also
        if text.lower() not in _TRUE | _FALSE:
            more = "" if also is None else f", {also}"
            raise ConfigError(
                f"{variable}={text!r} is not usable: {name} must be one of 1, 0, true, false{more}"
            )
        return text.lower() in _TRUE
    if name == "interface":
        return text.split(",")[0].strip()  # Gloo takes a list; the first one is the one to use
    value: object = text
    kind = type(_LIMITS[name][0]) if name in _LIMITS and text != _ALSO.get(name) else str
    try:
        value = kind(text)
        _check(name, value)
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None
    except ValueError:
        wanted = "an integer" if kind is int else "a number"
        raise ConfigError(f"{variable}={text!r} is not usable: {name} must be {wanted}") from None
    return value
