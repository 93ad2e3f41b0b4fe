"""The C++ core. Conversions only: policy, defaults and error classes live in Python."""

class EngineOptions:
    """What the transport is told once. Sizes in bytes, times in seconds, probabilities in [0, 1]."""

    window_bytes: int
    receive_buffer_bytes: int
    early_bytes: int
    spin_seconds: float
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
    lost_bytes: int
    error_code: int  # 0 none, 1 timeout, 2 mismatch, 3 closed
    error: str
    ranks: list[int]  # ranks at fault

class Engine:
    """One rank's transport for one group. Any thread may call any method; blocking ones release the GIL.

    ``ports``: the local UDP port for each peer, 0 at our own rank. ``open`` takes each peer's address and its
    port for us and returns the smallest path MTU. ``begin`` returns the ranks that did not answer. ``wait``
    returns None while the operation is not done; a negative timeout means no limit.
    """

    def __init__(
        self, rank: int, size: int, bind_address: str, token: int, options: EngineOptions
    ) -> None: ...
    @property
    def ports(self) -> list[int]: ...
    @property
    def grant_bytes(self) -> int: ...
    def open(self, addresses: list[str], ports: list[int]) -> int: ...
    def begin(self, mtu: int, grants: list[int], timeout_seconds: float) -> list[int]: ...
    def all_reduce(self, pointer: int, elements: int, dtype: int, op: int, timeout_seconds: float) -> int: ...
    def wait(self, operation: int, timeout_seconds: float) -> Report | None: ...
    def stats(self) -> dict[str, int | float]: ...
    def close(self, linger_seconds: float) -> None: ...

def reduce(dtype: int, inputs: list[int], divisor: float, out: int, elements: int) -> None: ...
def simd_level() -> str: ...

# --- The simulator ---------------------------------------------------------------------------------------

class LinkOptions:
    """One direction between two simulated ranks. Probabilities are per packet."""

    bits_per_second: float  # 0: unlimited
    delay_seconds: float
    jitter_seconds: float
    loss: float
    reorder: float
    reorder_seconds: float
    duplicate: float
    queue_bytes: int  # 0: no limit
    def __init__(self) -> None: ...

class SimulationOptions:
    """A simulated network before it runs. Times are virtual, counted from its beginning."""

    ranks: int
    seed: int
    link: LinkOptions
    coalesce: float
    wake_seconds: float
    receive_buffer_bytes: int
    max_events: int
    payload_bytes: int
    window_bytes: int
    early_bytes: int
    def __init__(self) -> None: ...
    def set_link(self, source: int, destination: int, link: LinkOptions) -> None: ...
    def add_cut(self, source: int, destination: int, begin_seconds: float, end_seconds: float) -> None: ...
    def add_pause(self, rank: int, begin_seconds: float, end_seconds: float) -> None: ...

class Simulation:
    """N ranks of the real protocol in virtual time. One thread at a time."""

    def __init__(self, options: SimulationOptions) -> None: ...
    def run(
        self,
        operations: list[list[tuple[int, int, int, int, float]]],  # pointer, elements, dtype, op, start
        timeout_seconds: float,
        bound_seconds: float,
    ) -> list[list[Report | None]]: ...  # None: the rank never started
    def settle(self, bound_seconds: float) -> bool: ...  # whether all endpoints have gone quiet
    def stats(self, rank: int) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def now_seconds(self) -> float: ...
    @property
    def trace_hash(self) -> int: ...
