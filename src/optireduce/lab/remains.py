"""What labs leave behind whose process was killed: nobody but the next lab can remove it.

A lab's name says whose it is: the process, and in which PID namespace that number means something (containers
may share the folder in which namespaces have their names).
"""

from __future__ import annotations

import itertools
import logging
import os
import re

from .commands import call
from .namespaces import Namespace

_logger = logging.getLogger("optireduce")
_PREFIX = "optireduce-lab"
_serial = itertools.count()


def new_name() -> str:
    """For a lab of this process."""
    return f"{_PREFIX}-{_pid_namespace()}-{os.getpid()}-{next(_serial)}"


def remove_remains() -> None:
    """Remove labs whose process is gone, with all that still runs or stands still in them."""
    ours = re.compile(rf"({_PREFIX}-{_pid_namespace()}-(\d+)-\d+)-.+")
    removed = set()
    for line in call("ip", "netns", "list").splitlines():
        found = ours.fullmatch(line.split()[0])
        if found is not None and not _is_alive(int(found[2])):
            Namespace.existing(found[0]).delete()
            removed.add(found[1])
    for name in sorted(removed):
        _logger.warning("removed what is left of %s: its process was killed", name)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
