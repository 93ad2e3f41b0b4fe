"""Process groups inside the test's rank processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from optireduce import Config

CONFIG = Config(interface="lo", linger_seconds=30.0)


@contextmanager
def process_group(
    backend: str,
    rank: int,
    size: int,
    directory: str,
    *,
    label: str = "",
    timeout: float = 120.0,
    config: Any = CONFIG,
) -> Iterator[Any]:
    """The default group for the time of a block; every group of a test needs its own ``label``."""
    file = Path(directory) / f"store-{backend}-{label}"
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        pg_options=config if backend == "optireduce" else None,
    )
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
