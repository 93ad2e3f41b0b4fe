"""The codes by which the core knows element types and reductions (cpp/kernels/dtype.h)."""

from __future__ import annotations

from typing import Literal, NamedTuple

Op = Literal["sum", "mean"]
"""What users reduce with."""


class DType(NamedTuple):
    """An element type that the engine reduces."""

    code: int
    itemsize: int


DTYPES: dict[str, DType] = {
    "float32": DType(0, 4),
    "float64": DType(1, 8),
    "bfloat16": DType(2, 2),
    "float16": DType(3, 2),
}
OPS: dict[str, int] = {"sum": 0, "mean": 1}
WEIGHTED_MEAN = 3  # a mean whose excluded contributions are kept with their weights


def op_code(op: str) -> int:
    """The core's code of a reduction; ValueError names those there are."""
    if op not in OPS:
        raise ValueError(f"op = {op!r} is not supported: it must be one of {', '.join(map(repr, OPS))}")
    return OPS[op]
