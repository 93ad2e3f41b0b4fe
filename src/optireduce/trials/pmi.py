"""What MPICH expects of whoever starts its processes: PMI-1, a few lines of text over a socket.

With it ranks that use MPI are started like all others, one on each host of a lab, and no process manager has
to learn what a network namespace is.
"""

from __future__ import annotations

import socket
import threading

_FIXED = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
    "get_appnum": "cmd=appnum appnum=0 rc=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname=ranks rc=0",
    "finalize": "cmd=finalize_ack rc=0",
}
_NOT_FOUND = "cmd=get_result rc=-1 msg=key_not_found value=unknown"
_BARRIER_OUT = "cmd=barrier_out rc=0"


class PmiServer:
    """Serves one group of ranks until they have gone; each has a socket from :meth:`seat`."""

    def __init__(self, size: int) -> None:
        self._size = size
        # Every rank is on a node of its own: they must not look for shared memory.
        self._values = {"PMI_process_mapping": f"(vector,(0,{size},1))"}
        self._lock = threading.Lock()
        self._at_barrier: list[socket.socket] = []
        self._given: list[socket.socket] = []

    def seat(self, rank: int) -> tuple[dict[str, str], int]:
        """A rank's environment, and the descriptor that its process must inherit."""
        ours, theirs = socket.socketpair()
        self._given.append(theirs)
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        variables = {"PMI_FD": str(theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(self._size)}
        return variables, theirs.fileno()

    def all_started(self) -> None:
        """Close the copies of what processes have inherited: now a rank's end is seen."""
        for given in self._given:
            given.close()
        self._given.clear()

    def _serve(self, rank: socket.socket) -> None:
        with rank, rank.makefile() as lines:
            for line in lines:
                answer = self._answer(rank, line)
                if answer is not None:
                    _say(rank, answer)

    def _answer(self, rank: socket.socket, line: str) -> str | None:
        """None: the answer comes when all ranks have asked."""
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        command = fields.get("cmd", "")
        if command in _FIXED:
            return _FIXED[command]
        if command == "get_universe_size":
            return f"cmd=universe_size size={self._size} rc=0"
        with self._lock:
            if command == "put":
                self._values[fields["key"]] = fields["value"]
                return "cmd=put_result rc=0 msg=success"
            if command == "get":
                value = self._values.get(fields["key"])
                return _NOT_FOUND if value is None else f"cmd=get_result rc=0 msg=success value={value}"
            if command == "barrier_in":
                self._arrive(rank)
                return None
        return f"cmd={command} rc=-1 msg=unknown_command"

    def _arrive(self, rank: socket.socket) -> None:
        self._at_barrier.append(rank)
        if len(self._at_barrier) == self._size:
            waiting, self._at_barrier = self._at_barrier, []
            for one in waiting:
                _say(one, _BARRIER_OUT)


def _say(rank: socket.socket, text: str) -> None:
    rank.sendall(text.encode() + b"\n")
