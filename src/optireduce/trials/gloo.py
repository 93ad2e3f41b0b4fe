"""The process group of ranks that train with torch."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(seconds=120)


def join_gloo(rank: int, size: int, interface: str, folder: str) -> None:
    """Form torch's default group; ranks meet in the folder. Torch gets one thread: ranks share few cores."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(folder) / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=_TIMEOUT,
    )
