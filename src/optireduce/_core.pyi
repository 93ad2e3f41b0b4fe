"""The C++ core. Conversions only: policy, defaults and error classes live in Python."""

from collections.abc import Sequence

class EngineOptions:
    """What the transport is told once. Sizes in bytes, times in seconds, probabilities in [0, 1]."""

    window_bytes: int
    receive_buffer_bytes: int
    early_bytes: int
    spin_seconds: float
    repair: bool
    late_repair: bool
    shuffle: bool
    warmup_operations: int
    bound_percentile: float
    bound_least: float
    bound_most: float
    absent_after: int
    min_ranks: int  # 0: a majority
    quorum_seconds: float
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
    repaired_bytes: int
    lost_bytes: int  # of both stages
    bounded: bool
    closed_by: str  # "complete", "early", "deadline"
    contributions_lost_bytes: int  # stage 1: bytes of the result times missing contributions / ranks
    reduced_lost_bytes: int  # stage 2: bytes of the result that never came and are zero
    lost_by_peer: list[tuple[int, int, int]]  # rank, bytes of its contributions, bytes it reduced
    corrected_bytes: int  # of earlier operations of the stream, added to this one's result
    non_finite: list[int]  # ranks whose contributions to our shard were infinite or NaN
    holes: list[tuple[str, int, int, int]]  # "contribution" or "reduced", whose, first byte, bytes
    absent: list[int]  # ranks not waited for
    bound_seconds: float  # tB; 0 when not bounded
    early_seconds: float  # tC
    early_fraction: float  # x
    incast: int
    window_bytes: int  # the smallest towards any peer
    rtt_seconds: float  # the largest smoothed one
    rate_bytes_per_second: float
    stood_still_seconds: float
    quorum_wait_seconds: float  # too few ranks were there to begin
    behind_seconds: float  # started so much later than the median peer; negative: earlier
    error_code: int  # 0 none, 1 timeout, 2 mismatch, 3 closed, 4 too few ranks
    error: str
    ranks: list[int]  # ranks at fault

class Engine:
    """One rank's transport for one group. Any thread may call any method; blocking ones release the GIL.

    ``ports``: the local UDP port for each peer, 0 at our own rank. ``open`` takes each peer's address and its
    port for us and returns the smallest path MTU. ``begin`` returns the ranks that did not answer. ``wait``
    returns None while the operation is not done; a negative timeout means no limit. ``events`` drains what
    changed in who is waited for: ("absent", rank, last operation that ended without it), ("back", rank,
    first operation that waits for it again); or ("unreached", rank, next operation): multicast was given up
    because it hardly reaches that rank.

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
        bounded: bool = False,
        weight: int = 1,
        stream: int = 0,
        patience_bytes: int = 0,
        repairs: bool = False,
        slack: float = 1.0,
        wide: int = 0,
        wide_values: int = 0,
        rounding_seed: int = 0,
    ) -> int: ...
    def wait(self, operation: int, timeout_seconds: float) -> Report | None: ...
    def events(self) -> list[tuple[str, int, int]]: ...
    def stats(self) -> dict[str, int | float]: ...
    def close(self, linger_seconds: float) -> None: ...

def reduce(dtype: int, inputs: list[int], divisor: float, out: int, elements: int) -> None: ...
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
    warmup_operations: int
    bound_percentile: float
    bound_least: float
    bound_most: float
    repair: bool
    late_repair: bool
    shuffle: bool
    absent_after: int
    min_ranks: int  # 0: a majority
    quorum_seconds: float
    multicast: bool
    def __init__(self) -> None: ...
    def set_doom(
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
        patience_bytes: int,
        repairs: bool,
    ) -> None: ...

class Simulation:
    """N ranks of the real protocol in virtual time. One thread at a time."""

    def __init__(self, options: SimulationOptions) -> None: ...
    def run(
        self, operations: list[list[SimulationCall]], timeout_seconds: float, bound_seconds: float
    ) -> list[list[Report | None]]: ...  # None: the rank never started, or crashed
    def settle(self, bound_seconds: float) -> bool: ...  # whether all endpoints have gone quiet
    def stats(self, rank: int) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def now_seconds(self) -> float: ...
    @property
    def trace_hash(self) -> int: ...
