"""Makes the backend known to torch; torch calls this at the end of its own import."""

from __future__ import annotations

import warnings
from typing import Any

BACKEND = "optireduce"


def register() -> None:
    """Register the backend's name. Light, and never raises: an error here would make ``import torch``
    fail."""
    try:
        import torch.distributed as dist

        if dist.is_available() and BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    except Exception as error:
        warnings.warn(f"the optireduce backend could not be registered: {error}", stacklevel=2)


def _create(options: Any, pg_options: Any) -> Any:
    """Called by init_process_group and new_group; only now is the real code imported."""
    from .process_group import create

    return create(options, pg_options)
