"""A script that ends without tidying up must end with its own exit code, not with an abort; and needs no
import of us."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

LIMIT_SECONDS = 300.0

IN_FLIGHT = """
import sys, torch, torch.distributed as dist
import optireduce
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("optireduce", init_method=f"file://{file}", rank=rank, world_size=2,
                        pg_options=optireduce.Config(interface="lo", linger_seconds=30.0))
dist.all_reduce(torch.ones(10))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
session = optireduce.attach(model, optireduce.Config(interface="lo", linger_seconds=30.0))
model(torch.ones(1, 4)).sum().backward()
if rank == 0:  # rank 1 never answers these
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(8)]
    futures = [work.get_future() for work in works]
print("end of script")
"""

FORKED = """
import os, sys, threading
import numpy as np
import optireduce
sys.path.insert(0, sys.argv[1])
from ranks import LOOPBACK, MemoryStore, results
store, groups = MemoryStore(), [None, None]
def join(rank):
    groups[rank] = optireduce.Communicator(rank, 2, store, LOOPBACK)
results(2, join)
child = os.fork()
if child == 0:
    sys.exit(0)  # runs the exit handlers that it inherited
assert os.waitpid(child, 0)[1] == 0
arrays = [np.ones(1000, np.float32) for _ in groups]
results(2, lambda rank: groups[rank].all_reduce(arrays[rank], "sum"))
assert all((array == 2).all() for array in arrays)
print("end of script")
"""

AUTOLOAD = """
import sys, torch, torch.distributed as dist
dist.init_process_group("optireduce", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert dist.get_backend() == "optireduce"
dist.destroy_process_group()
"""


def start(code: str, *args: str, **environment: str) -> subprocess.Popen[str]:
    import os

    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def test_exit_without_destroy_while_operations_are_in_flight(tmp_path: Path) -> None:
    ranks = [start(IN_FLIGHT, str(rank), str(tmp_path / "store")) for rank in range(2)]
    for process in ranks:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, output
        assert "end of script" in output


def test_a_forked_child_that_exits_does_not_close_its_parent_s_group() -> None:
    process = start(FORKED, str(Path(__file__).parent))
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output
    assert "end of script" in output


@pytest.mark.skipif(
    not any(point.name == "optireduce" for point in metadata.entry_points(group="torch.backends")),
    reason="the package is not installed, so torch cannot know its entry point",
)
def test_backend_is_there_without_import() -> None:
    process = start(AUTOLOAD)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output


def test_import_registers_where_autoload_is_off() -> None:
    process = start(
        AUTOLOAD.replace("import sys, torch,", "import torch, optireduce,"), TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output
