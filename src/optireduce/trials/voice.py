"""A rank's side of the pipes to the command that started it."""

from __future__ import annotations

import json
import os
from typing import Any


class Voice:
    """Lines of JSON to the command, a byte from it at each gate. What libraries print goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def tell(self, kind: str, **values: Any) -> None:
        """One record."""
        self._out.write(json.dumps({"kind": kind} | values) + "\n")
        self._out.flush()

    def gate(self) -> None:
        """Wait until all ranks are here. Not over the network: what delays packets would delay the start."""
        self.tell("gate")
        if not os.read(0, 1):
            raise SystemExit("the command that started this rank is gone")
