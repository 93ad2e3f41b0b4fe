"""What one run of the benchmark does, and the records that its ranks report."""

from __future__ import annotations

from dataclasses import dataclass

# Enough for a median at small sizes, few enough that 100 MB on 8 ranks takes seconds.
_MOST_ITERATIONS = 50
_FEWEST_ITERATIONS = 4
_BYTES_PER_BLOCK = 512 << 20  # summed over the ranks

ELEMENT_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Plan:
    """Everything a rank has to know. Sizes in bytes."""

    backends: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    rounds: int
    warmup: int
    iterations: int | None  # None: chosen by size
    receive_buffer_bytes: int | None  # None: the backend's default

    def iterations_for(self, size_bytes: int, nproc: int) -> int:
        """Timed operations in one block."""
        if self.iterations is not None:
            return self.iterations
        return max(_FEWEST_ITERATIONS, min(_MOST_ITERATIONS, _BYTES_PER_BLOCK // (size_bytes * nproc)))

    def order_in(self, round_index: int) -> tuple[str, ...]:
        """The backends in rotated order, so that none is always measured right after the same other."""
        shift = round_index % len(self.backends)
        return self.backends[shift:] + self.backends[:shift]

    def steps(self) -> int:
        """How many records a run of one rank count produces."""
        return len(self.sizes) * len(self.backends) * (1 + self.rounds)


@dataclass(frozen=True)
class Verified:
    """The result of one all-reduce compared with the exact sum."""

    backend: str
    size: int
    wrong: int  # elements, over all ranks


@dataclass(frozen=True)
class Block:
    """Consecutive iterations of one backend."""

    backend: str
    size: int
    round_index: int
    seconds: tuple[float, ...]  # of the slowest rank, an entry an iteration
    cpu_seconds: float  # of all ranks and all their threads
    socket_drops: int | None  # datagrams lost for want of buffer, over all ranks; None: not counted
