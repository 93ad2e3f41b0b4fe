"""Which torch.distributed backends the user named, checked before any process is started."""

from __future__ import annotations

from .errors import UsageError
from .units import parse_list

# Ours also with what its packets prove, to compare the two.
_KNOWN = ("gloo", "optireduce", "optireduce:mac", "optireduce:token")


def parse_backends(text: str) -> tuple[str, ...]:
    """The backends in `gloo,optireduce`, lower case as torch spells them."""
    return parse_list(text, "--backends", _check_backend)


def _check_backend(name: str) -> str:
    name = name.lower()
    # Importing torch takes seconds, so it is only asked about names that are not ours.
    if name not in _KNOWN and not _torch_knows(name):
        raise UsageError(
            f"--backends: {name!r} is not a backend of this PyTorch for CPUs; there are: {', '.join(_KNOWN)}"
        )
    return name


def _torch_knows(name: str) -> bool:
    import torch.distributed as dist

    return (
        name not in ("nccl", "undefined")
        and name in dist.Backend.backend_list
        and dist.is_backend_available(name)
    )
