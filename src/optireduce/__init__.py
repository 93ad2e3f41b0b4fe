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
    from .budget import Budget, ComputePolicy
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
        TooFewRanksError,
        TrainingHaltedError,
    )
    from .exactness import exact
    from .membership import MembershipEvent
    from .process_group import on_membership, stats
    from .rendezvous import TcpStore
    from .report import PeerLoss, Report, StepReport

    __version__: str

_HOME = {
    "Budget": "budget",
    "ComputePolicy": "budget",
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
    "TooFewRanksError": "errors",
    "TrainingHaltedError": "errors",
    "exact": "exactness",
    "MembershipEvent": "membership",
    "on_membership": "process_group",
    "stats": "process_group",
    "TcpStore": "rendezvous",
    "PeerLoss": "report",
    "Report": "report",
    "StepReport": "report",
}

__all__ = [
    "Budget",
    "ClosedError",
    "Communicator",
    "ComputePolicy",
    "Config",
    "ConfigError",
    "ConnectError",
    "Handle",
    "InterfaceError",
    "LocalError",
    "MembershipEvent",
    "MismatchError",
    "OperationTimeout",
    "OptiReduceError",
    "PeerError",
    "PeerLeftError",
    "PeerLoss",
    "Report",
    "Session",
    "StepReport",
    "TcpStore",
    "TooFewRanksError",
    "TrainingHaltedError",
    "__version__",
    "attach",
    "exact",
    "on_membership",
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
