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
    from .budget import Budget as Budget
    from .budget import ComputePolicy as ComputePolicy
    from .calls import stream as stream
    from .comm_hook import Session as Session
    from .comm_hook import attach as attach
    from .communicator import Communicator as Communicator
    from .communicator import Handle as Handle
    from .config import Config as Config
    from .elastic.group import ElasticGroup as ElasticGroup
    from .errors import ClosedError as ClosedError
    from .errors import ConfigError as ConfigError
    from .errors import ConnectError as ConnectError
    from .errors import GroupFinished as GroupFinished
    from .errors import InterfaceError as InterfaceError
    from .errors import LeftBehind as LeftBehind
    from .errors import LocalError as LocalError
    from .errors import MismatchError as MismatchError
    from .errors import OperationTimeout as OperationTimeout
    from .errors import OptiReduceError as OptiReduceError
    from .errors import PeerError as PeerError
    from .errors import PeerLeftError as PeerLeftError
    from .errors import RankLostError as RankLostError
    from .errors import TooFewRanksError as TooFewRanksError
    from .errors import TrainingHaltedError as TrainingHaltedError
    from .membership import MembershipEvent as MembershipEvent
    from .process_group import on_membership as on_membership
    from .process_group import stats as stats
    from .rendezvous import TcpStore as TcpStore
    from .report import Report as Report
    from .report import StepReport as StepReport

    __version__: str

_GONE = {
    "exact": "collectives of the backend and of Communicator are exact unless they name a stream; "
    "Config(bounded=False) makes the gradients of attach() exact too",
}
_NAMES = {
    "budget": "Budget ComputePolicy",
    "calls": "stream",
    "comm_hook": "Session attach",
    "communicator": "Communicator Handle",
    "config": "Config",
    "elastic.group": "ElasticGroup",
    "errors": "ClosedError ConfigError ConnectError GroupFinished InterfaceError LeftBehind LocalError "
    "MismatchError OperationTimeout OptiReduceError PeerError PeerLeftError RankLostError TooFewRanksError "
    "TrainingHaltedError",
    "membership": "MembershipEvent",
    "process_group": "on_membership stats",
    "rendezvous": "TcpStore",
    "report": "Report StepReport",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .version import version

        return version()
    if name in _GONE:
        raise AttributeError(f"optireduce.{name} is gone: {_GONE[name]}")
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
