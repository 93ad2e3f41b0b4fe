"""What can go wrong, told apart by whose fault it is.

A :class:`LocalError` is this process's own doing: fix the call or the settings here. A :class:`PeerError`
names in ``ranks`` the ranks at fault: this process did nothing wrong. Everything derives from
``RuntimeError``, which is what code written for ``torch.distributed`` expects; on the ``optireduce`` backend
a PeerError and a ClosedError are also a ``torch.distributed.DistBackendError``.
"""

from __future__ import annotations

from collections.abc import Iterable


class OptiReduceError(RuntimeError):
    """Base of every error of this package."""


class LocalError(OptiReduceError):
    """Misuse or a bad environment in this process."""


class ConfigError(LocalError, ValueError):
    """A setting has a value that cannot work; the text names the field, the value and what would be right."""


class InterfaceError(LocalError):
    """No usable local address, or the named network interface does not exist."""


class ClosedError(LocalError):
    """This process closed the communicator, process group or session before the operation was done."""


class PeerError(OptiReduceError):
    """Something that other ranks did, or did not do; ``ranks`` are theirs."""

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks: tuple[int, ...] = tuple(ranks)


class ConnectError(PeerError):
    """The group could not be formed: a rank did not come, refused, or cannot be reached over UDP."""


class OperationTimeout(PeerError, TimeoutError):  # noqa: N818 - reads as what happened
    """An operation was not done within its timeout; ``ranks`` are those still waited for."""


class PeerLeftError(PeerError):
    """A rank closed its end of the group, or its process ended, before the operation was done."""


class GroupFinished(PeerLeftError):  # noqa: N818 - reads as what happened
    """Every other rank has finished, so this one cannot train on; ``ranks`` are all others."""


class TooFewRanksError(PeerError):
    """Fewer than ``min_ranks`` ranks are there; ``ranks`` are those that are not."""


class RankLostError(PeerError):
    """An exact operation ended because ``ranks`` were removed from the group or, where membership is fixed,
    silent for ``exact_silence_seconds``. It failed on every member."""


class LeftBehind(PeerError):  # noqa: N818 - reads as what happened
    """The other ranks went on without this one, which missed more than it can replay and could not get a
    snapshot."""


class TrainingHaltedError(PeerError):
    """Too many steps in a row excluded too much; ``ranks`` are those that were excluded most."""


class MismatchError(PeerError):
    """Ranks called different operations: another size, dtype or op."""
