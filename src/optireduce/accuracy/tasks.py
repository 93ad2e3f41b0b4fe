"""All tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .digits import digits
from .stdlib_bytes import stdlib_bytes
from .task import Task

TASKS: Mapping[str, Callable[[], Task]] = {"digits": digits, "bytes": stdlib_bytes}
"""Each is loaded when it is called."""
