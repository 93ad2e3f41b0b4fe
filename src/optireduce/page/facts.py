"""What a reader must know to judge numbers: machine, versions, date. Imports nothing heavy."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..version import version as own_version


def machine_facts() -> Mapping[str, str]:
    """Facts of this machine and this moment, by name, in the order to be shown."""
    return {
        "CPU": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        platform.system(): platform.release(),
        "Python": platform.python_version(),
        "PyTorch": _version("torch"),
        "optireduce": own_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def cpu_model() -> str:
    """As the kernel calls it; the architecture where it says nothing."""
    fallback = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fallback
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, fallback)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
