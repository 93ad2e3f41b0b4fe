"""The benchmark's result as JSON for programs: every time, and what is needed to judge it later."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import CommandFailed
from .plan import Block, Plan, Verified
from .statistics import Row

FORMAT_VERSION = 1


@dataclass
class Collected:
    """What a whole run brought, for one number of ranks after the other."""

    rows: list[Row] = field(default_factory=list)
    records: dict[int, list[Block | Verified]] = field(default_factory=dict)  # by number of ranks
    flows: dict[int, list[float]] = field(
        default_factory=dict
    )  # raw UDP, bytes per second, by number of ranks


def usable_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def as_document(plan: Plan, nprocs: Sequence[int], collected: Collected) -> dict[str, Any]:
    """The whole run as plain JSON values. Times in seconds, sizes in bytes."""
    return {
        "format": FORMAT_VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": {name: _version(name) for name in ("optireduce", "torch", "numpy")}
        | {"python": platform.python_version()},
        "options": asdict(plan) | {"nproc": list(nprocs)},
        "raw_udp_bytes_per_second": {str(nproc): flows for nproc, flows in collected.flows.items()},
        "results": [asdict(row) for row in collected.rows],
        "blocks": [
            {"nproc": nproc} | asdict(record)
            for nproc, records in collected.records.items()
            for record in records
            if isinstance(record, Block)
        ],
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write the document, or say why that is not possible."""
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise CommandFailed(f"--json: cannot write {str(path)!r}: {error.strerror}") from error


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "rmem_max": _read_int("/proc/sys/net/core/rmem_max"),
        "load_average": os.getloadavg(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
