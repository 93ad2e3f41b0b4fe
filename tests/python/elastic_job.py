"""An elastic job of real processes, of which a test kills some and starts them again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import LIMIT_SECONDS, free_port

WORKER = Path(__file__).with_name("elastic_worker.py")
_MARGIN = 20  # steps between the newest report and the end of a loop


class Process:
    """One process of one rank, and all that it has told."""

    def __init__(
        self, command: list[str], told: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        self.facts: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._over = False
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            [*command, str(WORKER), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"} | (environment or {}),
        )
        self._threads = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def order(self, **order: Any) -> None:
        """It may have ended already."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def wait_for(self, is_it: Callable[[dict[str, Any]], Any], what: str, since: int = 0) -> dict[str, Any]:
        """The first fact from number ``since`` on that is it."""
        deadline = time.monotonic() + LIMIT_SECONDS
        with self._changed:
            while True:
                for fact in self.facts[since:]:
                    if is_it(fact):
                        return fact
                if self._over or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{what}: {self.facts[-3:]}\n{self.errors()}")

    def begun(self) -> dict[str, Any]:
        return self.wait_for(lambda fact: "begun" in fact, "did not begin")

    def at_step(self, step: int) -> dict[str, Any]:
        return self.wait_for(lambda fact: fact.get("step", -1) >= step, f"did not come to step {step}")

    def advanced(self, steps: int) -> dict[str, Any]:
        """So many steps from now on."""
        self.at_step(0)
        return self.at_step(self.steps()[-1]["step"] + steps)

    def with_members(self, members: list[int], since: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda fact: fact.get("members") == members, f"never had {members}", since)

    def result(self) -> dict[str, Any]:
        found = self.wait_for(lambda fact: "result" in fact, "has no result")
        self._process.wait(LIMIT_SECONDS)
        return dict(found["result"])

    def error(self) -> tuple[str, str]:
        """Class and text of what ended it."""
        found = self.wait_for(lambda fact: "error" in fact, "had no error")
        self._process.wait(LIMIT_SECONDS)
        return str(found["error"]), str(found["text"])

    def steps(self) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if "step" in fact]

    def errors(self) -> str:
        return "".join(self._errors[-60:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.facts.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)


class Job:
    """All ranks of a job. Its store is at a port of loopback, served by rank 0, or by a test."""

    def __init__(self, size: int, **options: Any) -> None:
        self.size = size
        self.port = options.pop("port", None) or free_port()
        self.serves = options.pop("serves", True)
        self.options = options
        self.all: list[Process] = []
        self.ranks: list[Process] = [self.start(rank) for rank in range(size)]

    def start(self, rank: int, **options: Any) -> Process:
        """A process of this rank, which takes the place of an earlier one."""
        told = {
            "rank": rank,
            "size": options.pop("size", self.size),
            "store": f"127.0.0.1:{self.port}",
            "serves": self.serves,
            "options": self.options | options,
        }
        process = Process([sys.executable], told)
        self.all.append(process)
        return process

    def everybody(self) -> list[int]:
        return list(range(self.size))

    def restart(self, rank: int, after: Callable[[], Any] | None = None) -> Process:
        """Kill it, let something happen, and start it again."""
        self.ranks[rank].kill()
        if after is not None:
            after()
        self.ranks[rank] = self.start(rank)
        return self.ranks[rank]

    def replaced(self, rank: int, spare: Process) -> None:
        """Kill it, and let a process go at once that was started before and held."""
        self.ranks[rank].kill()
        spare.order(go=True)
        self.ranks[rank] = spare

    def others(self, rank: int) -> list[Process]:
        return [process for other, process in enumerate(self.ranks) if other != rank]

    def end(self) -> list[dict[str, Any]]:
        """The results of all ranks."""
        newest = max(fact["step"] for process in self.ranks for fact in process.steps()[-1:])
        for process in self.ranks:
            process.order(end=newest + _MARGIN)
        return [process.result() for process in self.ranks]

    def trained_on(self, without: int, steps: int = 50) -> None:
        """The other ranks have removed this one, and gone on."""
        witness = self.others(without)[0]
        rest = [rank for rank in self.everybody() if rank != without]
        witness.with_members(rest, len(witness.facts))
        witness.advanced(steps)

    def whole(self) -> None:
        """All ranks are members from now on."""
        for process in self.ranks:
            process.with_members(self.everybody(), max(0, len(process.facts) - 1))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
