"""Programs of the user, one on each host of a lab: started, listened to, and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO

from ...lab import Lab

_PORT = 29_500  # free: every host is a new namespace
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10.0


class Programs:
    """``with Programs(lab, command) as programs: code = programs.wait()``"""

    def __init__(self, lab: Lab, command: Sequence[str]) -> None:
        self._readers: list[threading.Thread] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(len(lab.addresses)):
            process = lab.popen(
                rank,
                command,
                env=os.environ | variables(lab, rank),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert process.stdout is not None
            reader = threading.Thread(target=_copy, args=(rank, process.stdout), daemon=True)
            reader.start()
            self.processes.append(process)
            self._readers.append(reader)

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait(_STOP_SECONDS)
        for reader in self._readers:
            reader.join(_STOP_SECONDS)

    def wait(self, victim: int | None, tick: Callable[[], None]) -> int:
        """Until all have ended, or one but the victim has failed: its code, else 0. ``tick`` now and then."""
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [code for rank, code in enumerate(codes) if code and rank != victim]
            if failed:
                return failed[0]
            if None not in codes:
                return 0
            tick()
            time.sleep(_POLL_SECONDS)


def variables(lab: Lab, rank: int) -> dict[str, str]:
    """What torchrun would tell a rank that is alone on its host, and which interface leads to the others."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(lab.addresses)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": lab.addresses[0],
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": lab.interface,
    }


def _copy(rank: int, pipe: IO[bytes]) -> None:
    """Whole lines, so that those of several ranks do not mix."""
    with pipe:
        for line in pipe:
            sys.stdout.write(f"[{rank}] {line.decode(errors='replace').rstrip()}\n")
            sys.stdout.flush()
