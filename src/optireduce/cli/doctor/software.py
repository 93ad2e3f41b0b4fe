"""What is installed: the compiled core, PyTorch, the backend; and the cores they run on."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .finding import Finding, Verdict

_OLDEST_TORCH = (2, 6)
_REINSTALL = "nothing works without it: pip install --force-reinstall optireduce"


def examine_software() -> Iterator[Finding]:
    """From the bottom up."""
    yield cores(len(os.sched_getaffinity(0)))
    yield _core()
    torch_finding = _torch()
    yield torch_finding
    if torch_finding.verdict is not Verdict.BROKEN:
        yield _backend()


def cores(count: int) -> Finding:
    """Cores that this process may use (a container may have fewer than the machine)."""
    if count >= 2:
        return Finding("CPU cores", str(count), Verdict.OK)
    advice = "training, sending and receiving share one core: nothing overlaps. Give the container more"
    return Finding("CPU cores", str(count), Verdict.SLOW, advice)


def simd(level: str) -> Finding:
    """Which vector instructions the reduction uses."""
    if level != "plain":
        return Finding("SIMD", level, Verdict.OK)
    return Finding(
        "SIMD", level, Verdict.SLOW, "gradients are added without vector instructions; AVX2 or NEON is usual"
    )


def torch_version(version: str) -> Finding:
    """Whether this PyTorch is recent enough."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers >= _OLDEST_TORCH:
        return Finding("PyTorch", version, Verdict.OK)
    wanted = ".".join(map(str, _OLDEST_TORCH))
    return Finding(
        "PyTorch", version, Verdict.BROKEN, f"too old for the backend: pip install 'torch>={wanted}'"
    )


def _core() -> Finding:
    try:
        from ..._core import simd_level
    except ImportError as error:
        return Finding("compiled core", str(error), Verdict.BROKEN, _REINSTALL)
    return simd(simd_level())


def _torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("PyTorch", str(error), Verdict.BROKEN, "the backend needs it: pip install torch")
    return torch_version(torch.__version__)


def _backend() -> Finding:
    """Importing torch is enough: it loads the backend through an entry point."""
    import torch.distributed as dist

    if dist.is_available() and "optireduce" in dist.Backend.backend_list:
        return Finding("backend", "registered", Verdict.OK)
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        advice = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches autoloading off: unset it, or import optireduce"
    else:
        advice = 'init_process_group("optireduce") fails: ' + _REINSTALL.partition(": ")[2]
    return Finding("backend", "not registered", Verdict.BROKEN, advice)
