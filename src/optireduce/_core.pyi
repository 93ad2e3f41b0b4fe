"""The C++ core. Conversions only: policy, defaults and error classes live in Python."""

from collections.abc import Sequence

class EngineOptions:
    """What the transport is told once. Sizes in bytes, times in seconds, probabilities in [0, 1]."""

    window_bytes: int
    receive_buffer_bytes: int
    early_bytes: int
    log_bytes: int
    spin_seconds: float
    delivery: str  # "carry", "best-effort"
    max_lag: int  # steps
    exclude_at_most: float
    fixed_membership: bool
    incarnation: int  # which process of this rank; above 0 it is left behind at first
    min_ranks: int  # 0: a majority
    quorum_seconds: float
    exact_silence_seconds: float
    shuffle: bool
    warmup_operations: int  # this and bound_*: best effort only
    bound_percentile: float
    bound_least: float
    bound_most: float
    use_gso: bool
    use_gro: bool
    drop: float
    duplicate: float
    reorder: float
    impairment_seed: int
    def __init__(self) -> None: ...

class Report:
    """How one operation ended."""

    operation: int
    bytes: int
    elapsed_seconds: float
    stood_still_seconds: float
    repaired_bytes: int
    bounded: bool
    closed_by: str  # "complete", "early", "deadline"
    view: int
    members: list[int]
    excluded: list[tuple[int, int]]  # rank, bytes of its contribution that no decision includes
    void_bytes: int
    carried_bytes: int
    residual_bytes: int
    dropped_bytes: int
    oldest_steps: int
    non_finite: list[int]
    waited_for: int | None
    waited_seconds: float
    behind_seconds: float
    deadline_seconds: float
    usual_seconds: float
    incast: int
    window_bytes: int
    rtt_seconds: float
    bytes_per_second: float
    lost_contribution_bytes: int  # this and the next fields: best effort only
    lost_decision_bytes: int
    holes: list[tuple[str, int, int, int]]  # "contribution" or "decision", whose, first byte, bytes
    early_seconds: float
    early_fraction: float
    # 0 none, 1 timeout, 2 mismatch, 3 closed, 4 too few ranks, 5 left behind, 6 rank lost, 7 group finished
    error_code: int
    error: str
    ranks: list[int]  # ranks at fault

class Engine:
    """One rank's transport for one group. Any thread may call any method; blocking ones release the GIL.

    ``ports``: the local UDP port for each peer, 0 at our own rank. ``open`` takes each peer's address and its
    port for us and returns the smallest path MTU. ``begin`` returns the ranks that did not answer. ``wait``
    returns None while the operation is not done; a negative timeout means no limit. ``events`` drains changes
    of the membership: (kind, rank, view, operation), kind "removed", "left", "returned", "left behind" or
    "unreached": multicast was given up because it hardly reaches that rank.

    ``watch_outside``: the process waits for all ranks outside of the engine, and ranks that are silent for so
    long (at most ``exact_silence_seconds``) are lost where membership is fixed; 0: it does not wait any more.
    ``gone``: ranks that left, and ranks that are lost.

    ``release``: memory of finished operations with ``stays_readable`` is about to be overwritten.
    ``take_residual``: what is kept for a stream, and forgets it: dtype code, scale, values (empty: nothing).

    ``redirect``: a restarted process of a rank is at this address, on the port that it has for us.

    ``is_left_behind``: operations end at once with error 5, until a snapshot is restored. ``position``:
    number of the next operation and digest of those before, for a snapshot that is taken now; the log is kept
    from here on for the rank that gets it. ``restore``: this rank has taken over a snapshot that was made at
    this position, before ``step``; the event "returned" of its own rank says that it is a member again, "left
    behind" that the members do not accept the snapshot. Reports of operations from ``completed`` on are
    forgotten. ``position`` and ``restore`` raise RuntimeError while an operation is open, ``restore`` also
    where the rank is not left behind. ``behind``: by how many operations a rank outside the view is behind,
    while it replays them; None: it is a member, or cannot replay. ``give_up_replay``: it is left behind
    instead; False: it is a member.

    To leave while others go on: ``prepare_to_leave`` tells them, and until ``may_leave`` the operations that
    they begin must be called here, too: ``next_uncalled`` waits for one, and tells its number, elements,
    dtype code, op code, whether it is bounded, and its stream. ``keeps_residual``: excluded contributions of
    this rank wait to be added to its next ones.

    ``check``: a hash of this rank's parameters before a step, for the other members; returns earlier steps
    that are settled, with the hashes by rank that were heard.

    After ``begin``: ``open_group`` returns the port on which this rank speaks to a multicast group,
    ``join_group`` takes everybody's address and port, ``probe_group`` returns the ranks that are not heard
    there, and ``use_group`` begins to use it, or ends it. ``auth``: "token" or "mac". ``secret``: 16 bytes,
    the same on every rank. ``rows``: the ranks of every row of a grid; none: flat.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        bind_address: str,
        auth: str,
        secret: bytes,
        options: EngineOptions,
        rows: list[list[int]] = ...,
    ) -> None: ...
    @property
    def ports(self) -> list[int]: ...
    @property
    def grant_bytes(self) -> int: ...
    def open(self, addresses: list[str], ports: list[int]) -> int: ...
    def begin(self, mtu: int, grants: list[int], timeout_seconds: float) -> list[int]: ...
    def redirect(self, rank: int, address: str, port: int) -> None: ...
    def open_group(self, address: str, ttl: int) -> int: ...
    def join_group(self, addresses: Sequence[str], ports: Sequence[int]) -> None: ...
    def probe_group(self, timeout_seconds: float) -> list[int]: ...
    def use_group(self, use: bool) -> None: ...
    def all_reduce(
        self,
        pointer: int,
        elements: int,
        dtype: int,
        op: int,
        timeout_seconds: float,
        *,
        bounded: bool = False,
        weight: int = 1,
        stream: int = 0,
        step: int = 0,
        scale: float = 1.0,
        stays_readable: bool = False,
        wide: int = 0,
        wide_values: int = 0,
        rounding_seed: int = 0,
    ) -> int: ...
    def wait(self, operation: int, timeout_seconds: float) -> Report | None: ...
    def release(self) -> None: ...
    def take_residual(self, stream: int) -> tuple[int, float, bytes]: ...
    def position(self) -> tuple[int, int]: ...
    def restore(self, completed: int, digest: int, step: int) -> None: ...
    def prepare_to_leave(self) -> None: ...
    def may_leave(self) -> bool: ...
    def keeps_residual(self) -> bool: ...
    def next_uncalled(self, timeout_seconds: float) -> tuple[int, int, int, int, bool, int] | None: ...
    def check(self, step: int, hash: int) -> list[tuple[int, list[tuple[int, int]]]]: ...
    def is_left_behind(self) -> bool: ...
    def behind(self) -> int | None: ...
    def give_up_replay(self) -> bool: ...
    def events(self) -> list[tuple[str, int, int, int]]: ...
    def watch_outside(self, limit_seconds: float) -> None: ...
    def gone(self) -> tuple[list[int], list[int]]: ...
    def stats(self) -> dict[str, int | float]: ...
    def close(self, linger_seconds: float) -> None: ...

def reduce(dtype: int, inputs: list[int], divisor: float, out: int, elements: int) -> None: ...
def fingerprint(pieces: list[tuple[int, int]]) -> int: ...
def simd_level() -> str: ...

INT8_BLOCK_BYTES: int
INT8_BLOCK_VALUES: int

def int8_encode(values: int, count: int, seed: int, blocks: int) -> None: ...
def int8_decode(blocks: int, count: int, values: int) -> None: ...
def bfloat16_encode(values: int, count: int, halves: int) -> None: ...
def bfloat16_decode(halves: int, count: int, values: int) -> None: ...
def hadamard_encoded_elements(elements: int, block: int) -> int: ...
def hadamard_encode(dtype: int, values: int, elements: int, block: int, seed: int, out: int) -> None: ...
def hadamard_decode(
    dtype: int,
    encoded: int,
    elements: int,
    block: int,
    seed: int,
    lost: list[tuple[int, int]],
    cap: float,
    out: int,
) -> None: ...

# --- The simulator ---------------------------------------------------------------------------------------

class LinkOptions:
    """One direction between two simulated ranks. Probabilities are per packet, ``spike`` per batch."""

    bits_per_second: float  # 0: unlimited
    delay_seconds: float
    jitter_seconds: float
    loss: float
    reorder: float
    reorder_seconds: float
    duplicate: float
    queue_bytes: int  # 0: no limit
    spike: float
    spike_seconds: float
    def __init__(self) -> None: ...

class PortOptions:
    """What all links of a simulated rank share, in one direction."""

    bits_per_second: float  # 0: unlimited
    queue_bytes: int  # 0: no limit
    burst_bytes: int
    policer: bool
    whole_batches: bool
    def __init__(self) -> None: ...

class SimulationOptions:
    """A simulated network before it runs. Times are virtual, counted from its beginning."""

    ranks: int
    seed: int
    rows: list[list[int]]
    link: LinkOptions
    egress: PortOptions
    ingress: PortOptions
    coalesce: float
    wake_seconds: float
    receive_buffer_bytes: int
    max_events: int
    auth: str  # "token" or "mac"
    payload_bytes: int
    window_bytes: int
    early_bytes: int
    log_bytes: int
    delivery: str
    max_lag: int
    exclude_at_most: float
    fixed_membership: bool
    min_ranks: int  # 0: a majority
    quorum_seconds: float
    exact_silence_seconds: float
    shuffle: bool
    warmup_operations: int
    bound_percentile: float
    bound_least: float
    bound_most: float
    multicast: bool
    def __init__(self) -> None: ...
    def set_forced_loss(
        self,
        pattern: str,
        hopeless: str,
        share: float,
        burst_packets: float,
        first_operation: int,
        least_elements: int,
    ) -> None: ...
    def set_link(self, source: int, destination: int, link: LinkOptions) -> None: ...
    def set_egress(self, rank: int, port: PortOptions) -> None: ...
    def set_ingress(self, rank: int, port: PortOptions) -> None: ...
    def add_background(
        self, rank: int, begin_seconds: float, end_seconds: float, bits_per_second: float
    ) -> None: ...
    def add_cut(self, source: int, destination: int, begin_seconds: float, end_seconds: float) -> None: ...
    def add_group_outage(self, rank: int, begin_seconds: float, end_seconds: float) -> None: ...
    def add_pause(self, rank: int, begin_seconds: float, end_seconds: float) -> None: ...
    def set_hostile(
        self,
        forge: float,
        truncate: float,
        mangle: float,
        replay: float,
        replay_seconds: float,
        tamper: float,
    ) -> None: ...
    def add_crash(self, rank: int, at_seconds: float) -> None: ...
    def set_clock_offset(self, rank: int, offset_seconds: float) -> None: ...
    def set_clock_drift(self, rank: int, parts_per_million: float) -> None: ...

class SimulationCall:
    """One rank's part in one simulated operation. ``follows``: ``start_seconds`` counts from the end of the
    rank's operation before, not from the beginning of the run. Infinity: it never starts."""

    def __init__(
        self,
        pointer: int,
        elements: int,
        dtype: int,
        op: int,
        *,
        start_seconds: float,
        follows: bool,
        bounded: bool,
        weight: int,
        stream: int,
        step: int,
        stays_readable: bool = False,
    ) -> None: ...

class Simulation:
    """N ranks of the real protocol in virtual time. One thread at a time."""

    def __init__(self, options: SimulationOptions) -> None: ...
    def run(
        self, operations: list[list[SimulationCall]], timeout_seconds: float, bound_seconds: float
    ) -> list[list[Report | None]]: ...  # None: the rank never started, or crashed
    def settle(self, bound_seconds: float) -> bool: ...  # whether all endpoints have gone quiet
    def take_residual(self, rank: int, stream: int) -> bytes: ...
    def stats(self, rank: int) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def now_seconds(self) -> float: ...
    @property
    def trace_hash(self) -> int: ...
