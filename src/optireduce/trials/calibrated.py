"""Calibrations of this machine, kept in the user's cache: the next run need not try again."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..lab import Environment
from .calibration import Calibration


@dataclass(frozen=True)
class Scope:
    """What a calibration is valid for."""

    hosts: int
    rate: str | None
    size: int

    def key(self, environment: Environment) -> str:
        """In the file."""
        return f"{environment.name} {self.hosts} hosts {self.rate} {self.size} bytes {platform.node()}"


def recall(environment: Environment, scope: Scope) -> tuple[Environment, str]:
    """The environment as calibrated here, and a line about that; as it comes where it never was."""
    if environment.tail is None or environment.bursts is None:
        return environment, environment.summary
    known = _load().get(scope.key(environment))
    if known is None:
        hint = f"optireduce lab calibrate {environment.name} --hosts {scope.hosts}"
        line = f"bursts of {environment.bursts.on_ms:.0f} ms, not calibrated on this machine ({hint})"
        return environment, line
    bursts = environment.bursts.lasting(float(known["on_ms"]))
    line = f"bursts of {bursts.on_ms:.0f} ms, calibrated {known['date']}: Gloo's P99/P50 {known['ratio']:.2f}"
    return replace(environment, bursts=bursts), line


def remember(calibration: Calibration, scope: Scope) -> Path:
    """Keep it for later runs; the file's path."""
    environment = calibration.environment
    assert environment.bursts is not None
    known = _load()
    known[scope.key(environment)] = {
        "on_ms": environment.bursts.on_ms,
        "ratio": calibration.ratio,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(known, indent=1) + "\n")
    written.replace(path)
    return path


def _load() -> dict[str, Any]:
    """A file that is missing or not ours is as good as none."""
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "optireduce" / "lab.json"
