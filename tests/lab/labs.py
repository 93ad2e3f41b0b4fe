"""What tests in network namespaces share."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

MISSING = [tool for tool in ("ip", "bridge", "tc", "iptables") if shutil.which(tool) is None]
LIMIT_SECONDS = 120.0


def needs_a_lab(test: Callable[..., None]) -> Callable[..., None]:
    """Skips, with a reason, where there can be none."""
    for mark in (
        pytest.mark.root,
        pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
        pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
    ):
        test = mark(test)
    return test


def without_firewall(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine as it comes: with iproute2, and without iptables."""
    for tool in ("ip", "bridge", "tc", "tee", "true"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(folder))


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, not forever."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
