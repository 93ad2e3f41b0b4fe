"""Arrays from whose mean one can read who is in it: rank r contributes 2^r times a small number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...report import Report, StepReport

Floats = npt.NDArray[np.float32]
Sets = npt.NDArray[np.int64]

NOBODY = -1  # a value that is no mean of anybody's
PERIOD = 7  # operations: then contributions repeat
_FLOAT32, _BFLOAT16 = 1e-5, 2.0**-8  # how far a value may be from the true mean


def contribution(rank: int, elements: int, operation: int = 0) -> Floats:
    """What a rank gives; never zero, and another array in the next operation."""
    return _pattern(elements, operation) * np.float32(2**rank)


def contributors(values: Floats, ranks: int, operation: int = 0, rounding: float = _FLOAT32) -> Sets:
    """For every value the ranks whose mean it is, a bit for each; 0 where it is zero, which means lost;
    NOBODY where it is no such mean. A mean of fewer than half of the ranks is divided by half of them."""
    sets = np.arange(2**ranks)
    means = sets / np.maximum(count(sets), ranks / 2)
    order = np.argsort(means)
    found = values / _pattern(values.size, operation).astype(np.float64)
    nearest = _nearest(means[order], found)
    right = np.isclose(means[order][nearest], found, rtol=rounding, atol=0.0)
    return np.where(right, sets[order][nearest], NOBODY)


def count(sets: Sets) -> Sets:
    """How many ranks each set has."""
    if (sets < 0).any():
        raise ValueError(f"value {int(np.argmax(sets < 0))} is nobody's mean: it has no ranks to count")
    return np.array([number.bit_count() for number in range(int(sets.max()) + 1)])[sets]


def wrong_values(values: Floats, ranks: int, report: Report) -> int:
    """Values that are not the mean of somebody's contributions to this very operation, and lost ones that the
    report does not own up to."""
    found = contributors(values, ranks, report.operation)
    wrong = int(np.count_nonzero(found == NOBODY))
    lost = int(np.count_nonzero(found == 0)) * values.itemsize
    unreported = max(0, lost - report.reduced_lost_bytes) // values.itemsize
    whole = not report.contributions_lost_bytes and not report.reduced_lost_bytes and not report.absent
    incomplete = int(np.count_nonzero(found != 2**ranks - 1)) if whole else 0
    return max(wrong, unreported, incomplete)


def wrong_gradients(values: Floats, rank: int, ranks: int, report: StepReport) -> int:
    """The same for gradients through attach() between hosts, on one rank. They travel as bfloat16; for what
    is lost, a share of the rank's own gradient stands in, or zero; and what earlier steps had lost may have
    been added to as many values as the report says."""
    value_bytes = report.bytes // values.size
    late = report.corrected_bytes // value_bytes
    found = contributors(values, ranks, report.step, _BFLOAT16)
    lent = contribution(rank, values.size, report.step) / np.float32(np.sqrt(ranks))
    missing = (values == 0) | ((found == NOBODY) & np.isclose(values, lent, rtol=_BFLOAT16, atol=0.0))
    unreported = max(0, int(np.count_nonzero(missing)) - report.reduced_lost_bytes // value_bytes)
    wrong = int(np.count_nonzero((found == NOBODY) & ~missing)) + unreported - late
    whole = not report.lost_bytes and not report.absent
    different = int(np.count_nonzero(values != _mean_of_all(values.size, ranks, report.step)))
    return max(0, wrong, different - late if whole else 0)


def whose(values: Floats, ranks: int, report: Report | StepReport) -> str:
    """For people, where something is wrong: how many values are the mean of which ranks, and the report."""
    if isinstance(report, StepReport):
        found = contributors(values, ranks, report.step, _BFLOAT16)
    else:
        found = contributors(values, ranks, report.operation)
    sets, counts = np.unique(found, return_counts=True)
    return (
        ", ".join(f"{n} of {_names(int(one))}" for one, n in zip(sets, counts, strict=True)) + f"; {report}"
    )


def as_bfloat16(values: Floats) -> Floats:
    """Rounded to the nearest, to the even one of two; still float32. Not for NaNs."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def _names(found: int) -> str:
    if found <= 0:
        return "nobody" if found == NOBODY else "zero"
    return "+".join(str(rank) for rank in range(found.bit_length()) if found >> rank & 1)


def _mean_of_all(elements: int, ranks: int, operation: int) -> Floats:
    return as_bfloat16(_pattern(elements, operation) * np.float32((2**ranks - 1) / ranks))


def _pattern(elements: int, operation: int) -> Floats:
    return (1 + (np.arange(elements) + operation) % PERIOD).astype(np.float32)


def _nearest(ordered: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> Sets:
    right = np.clip(np.searchsorted(ordered, values), 1, ordered.size - 1)
    return np.where(values - ordered[right - 1] < ordered[right] - values, right - 1, right)
