"""Gradient all-reduce over UDP for PyTorch DDP.

``torch.distributed.init_process_group("optireduce")``, or :func:`attach` on top of another backend, or
:class:`Communicator` without torch. Names are imported when first used, so that torch can load this package
while it is itself being imported, and programs without torch never pay for it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comm_hook import Session, attach
    from .communicator import Communicator, Handle
    from .config import Config
    from .errors import (
        ClosedError,
        ConfigError,
        ConnectError,
        InterfaceError,
        LocalError,
        MismatchError,
        OperationTimeout,
        OptiReduceError,
        PeerError,
        PeerLeftError,
    )
    from .exactness import exact
    from .process_group import stats
    from .rendezvous import TcpStore
    from .report import Report, StepReport

    __version__: str

_HOME = {
    "Session": "comm_hook",
    "attach": "comm_hook",
    "Communicator": "communicator",
    "Handle": "communicator",
    "Config": "config",
    "ClosedError": "errors",
    "ConfigError": "errors",
    "ConnectError": "errors",
    "InterfaceError": "errors",
    "LocalError": "errors",
    "MismatchError": "errors",
    "OperationTimeout": "errors",
    "OptiReduceError": "errors",
    "PeerError": "errors",
    "PeerLeftError": "errors",
    "exact": "exactness",
    "stats": "process_group",
    "TcpStore": "rendezvous",
    "Report": "report",
    "StepReport": "report",
}

__all__ = [
    "ClosedError",
    "Communicator",
    "Config",
    "ConfigError",
    "ConnectError",
    "Handle",
    "InterfaceError",
    "LocalError",
    "MismatchError",
    "OperationTimeout",
    "OptiReduceError",
    "PeerError",
    "PeerLeftError",
    "Report",
    "Session",
    "StepReport",
    "TcpStore",
    "__version__",
    "attach",
    "exact",
    "stats",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .version import version

        return version()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


# Where torch did not load us by its entry point (TORCH_DEVICE_BACKEND_AUTOLOAD=0), importing us does.
if "torch.distributed" in sys.modules:
    from ._autoload import register

    register()
