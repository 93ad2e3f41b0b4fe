"""The example runs on both backends, with and without attach()."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"

needs_core = pytest.mark.skipif(
    find_spec("optireduce._core") is None, reason="the compiled core is not built"
)


installed = pytest.mark.skipif(
    not any(point.name == "optireduce" for point in entry_points(group="torch.backends")),
    reason="the package is not installed, so torch cannot load the backend by itself",
)


@needs_core
@pytest.mark.parametrize(
    "options", [["--backend", "gloo", "--hook"], pytest.param(["--backend", "optireduce"], marks=installed)]
)
def test_example(options: list[str]) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    finished = subprocess.run(
        [*launcher, str(EXAMPLE), "--epochs", "2", *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    assert "epoch 1: loss" in finished.stdout
    assert ("last step" in finished.stdout) == ("--hook" in options)
