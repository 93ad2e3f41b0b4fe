"""How a rank that was left behind gets the training state of the others.

It asks all ranks for their step, and picks a step S that none of them has reached. All of them capture their
state at S: each hashes the whole of it and copies one part. The state that more than half of the donors have
is the group's; its parts are fetched from all donors at once and checked against the hash. Whatever goes
wrong on the way (a donor ends, S came too early, one donor has another state) begins it anew.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..errors import GroupFinished, LeftBehind
from .channel import ChannelError
from .requests import Peers, Refused
from .state import Image, part_of

_MOST_MARGIN = 63  # steps
_MOST_FAILURES = 3  # of a donor, which is then left out
_FIRST_MARGIN = 2  # steps between the newest member and the capture
_RETRY_SECONDS = 0.1
_MOST_DISAGREEMENTS = 3
_MOST_SILENCE = 3  # requests in a row that a donor may leave without an answer
_MOST_BYTES = 2**44

_logger = logging.getLogger("optireduce")


@dataclass(frozen=True)
class Snapshot:
    """A state of the group, whole and checked."""

    step: int
    completed: int
    digest: int
    shared: Image
    buffers: Image


class Again(Exception):  # noqa: N818 - internal signal
    """This attempt came to nothing."""


class Returner:
    """One return. ``timeout_seconds`` bounds all of it."""

    def __init__(self, peers: Peers, timeout_seconds: float, pause: bool) -> None:
        self._peers = peers
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._pause = pause
        self._margin = _FIRST_MARGIN
        self._odd: set[int] = set()  # ranks whose state is not the group's
        self._disagreements = 0
        self._trouble = "no member answers"  # the newest
        self._donors: list[int] = []  # of the newest attempt
        self._failures: Counter[int] = Counter()  # captures that a rank did not make
        self._stopped = False

    def fetch(self) -> Snapshot:
        """A snapshot. GroupFinished: every other rank has finished; LeftBehind: there was none in time."""
        with ThreadPoolExecutor(max(len(self._peers.doors), 1), "optireduce-return") as pool:
            try:
                while True:
                    try:
                        return self._attempt(pool.map)
                    except Again as trouble:
                        self._trouble = str(trouble)
                    self._check_time()
                    time.sleep(_RETRY_SECONDS)
            finally:
                self._stopped = True  # the pool waits for its threads, also after an interrupt

    def release(self) -> None:
        """Tell the donors that nobody needs their captures any more; a new request replaces them, too."""
        for rank in self._donors:
            with contextlib.suppress(OSError, ChannelError, Refused):
                self._peers.ask(rank, {"ask": "release"})

    def _attempt(self, in_parallel: Callable[..., Iterable[Any]]) -> Snapshot:
        donors = self._members(in_parallel)
        step = self._chosen_step(donors)
        ranks = sorted(donors)
        orders = [
            {"ask": "capture", "step": step, "part": part, "parts": len(ranks), "pause": self._pause}
            for part in range(len(ranks))
        ]
        self._donors = ranks
        answers = dict(zip(ranks, in_parallel(self._captured, ranks, orders), strict=True))
        return self._fetched(self._majority(answers), ranks, in_parallel)

    def _members(self, in_parallel: Callable[..., Iterable[Any]]) -> dict[int, int]:
        """The step of every rank that trains."""
        ranks = sorted(self._peers.doors)
        answers = dict(zip(ranks, in_parallel(partial(_status, self._peers), ranks), strict=True))
        if (finished := _finished(answers)) is not None:
            raise finished
        donors = {rank: answer for rank, answer in answers.items() if isinstance(answer, int)}
        if not donors.keys() - self._odd:
            self._odd.clear()
        donors = {rank: step for rank, step in donors.items() if rank not in self._odd}
        if not donors:
            raise Again("no member answers")
        return donors

    def _chosen_step(self, donors: dict[int, int]) -> int:
        return max(donors.values()) + self._margin

    def _captured(self, rank: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """A donor's description of its capture; None: it has passed the step, or is gone."""
        silence = 0
        request = order
        while silence < _MOST_SILENCE:
            self._check_time()
            try:
                answer = self._peers.ask(rank, request)
                if request is order:
                    request = {"ask": "ready"}
                elif answer["capture"] is not None:
                    return _checked(answer["capture"], order["step"])
                elif not answer["waits"]:
                    return None
                silence = 0
            except Refused:
                return None
            except (OSError, ChannelError, KeyError, TypeError, ValueError):
                silence += 1
        return None

    def _majority(self, answers: dict[int, dict[str, Any] | None]) -> dict[int, dict[str, Any]]:
        """The donors that have the state that most have."""
        missing = [rank for rank, answer in answers.items() if answer is None]
        if missing:
            # Odd and even, for loops with two exchanges in a step.
            self._margin = min(2 * self._margin + 1, _MOST_MARGIN)
            self._failures.update(missing)
            self._odd |= {rank for rank in missing if self._failures[rank] >= _MOST_FAILURES}
            raise Again(f"rank {_names(missing)} could not capture its state")
        by_state: dict[tuple[Any, ...], list[int]] = {}
        for rank, answer in answers.items():
            assert answer is not None
            key = (answer["shared"]["digest"], answer["completed"], answer["operations"])
            by_state.setdefault(key, []).append(rank)
        ranks = max(by_state.values(), key=len)
        if 2 * len(ranks) <= len(answers):
            self._disagree(by_state)
        odd = answers.keys() - set(ranks)
        if odd:
            self._odd |= odd
            _logger.warning("the training state of rank %s differs from that of most ranks", _names(odd))
            raise Again(f"the state of rank {_names(odd)} differs")  # their parts are of no use
        return {rank: answer for rank, answer in answers.items() if answer is not None}

    def _disagree(self, by_state: dict[tuple[Any, ...], list[int]]) -> None:
        self._disagreements += 1
        sides = " and ".join(f"rank {_names(ranks)}" for ranks in by_state.values())
        text = f"the training states of {sides} differ from each other, and no state is that of most ranks"
        if self._disagreements >= _MOST_DISAGREEMENTS:
            everybody = sorted(rank for ranks in by_state.values() for rank in ranks)
            raise LeftBehind(
                f"{text}; restart from a checkpoint. Something outside the gradients differs between ranks, "
                f"for example an object given to session.keep()",
                everybody,
            )
        raise Again(text)

    def _fetched(
        self, answers: dict[int, dict[str, Any]], ranks: list[int], in_parallel: Callable[..., Iterable[Any]]
    ) -> Snapshot:
        first = answers[ranks[0]]
        shared, buffers = first["shared"], first["buffers"]
        manifest, body = bytearray(shared["manifest"]), bytearray(shared["bytes"])
        own_manifest, own_body = bytearray(buffers["manifest"]), bytearray(buffers["bytes"])
        view = memoryview(body)
        orders: list[tuple[int, str, memoryview]] = [
            (rank, "part", view[slice(*part_of(len(body), index, len(ranks)))])
            for index, rank in enumerate(ranks)
        ]
        orders.append((ranks[0], "manifest", memoryview(manifest)))
        orders.append((ranks[0], "buffers manifest", memoryview(own_manifest)))
        orders.append((ranks[0], "buffers", memoryview(own_body)))
        list(in_parallel(self._fetch_piece, *zip(*orders, strict=True)))
        found = Snapshot(
            int(first["step"]),
            int(first["completed"]),
            int(first["operations"]),
            _image(manifest, body),
            _image(own_manifest, own_body),
        )
        if (found.shared.digest(), found.buffers.digest()) != (shared["digest"], buffers["digest"]):
            raise Again("what arrived is not what the donors hashed")
        return found

    def _fetch_piece(self, rank: int, piece: str, body: memoryview) -> None:
        self._check_time()
        try:
            answer = self._peers.ask(rank, {"ask": "fetch", "piece": piece, "bytes": len(body)}, body)
        except (OSError, ChannelError, Refused) as error:
            raise Again(f"rank {rank} ended in the middle of a snapshot: {error}") from None
        if answer.get("gone"):
            raise Again(f"rank {rank} has forgotten its part of the snapshot")

    def _check_time(self) -> None:
        if self._stopped:
            raise Again("nobody waits for this snapshot any more")
        if time.monotonic() >= self._deadline:
            raise LeftBehind(
                f"this rank was left behind, and no snapshot of the others came within "
                f"{self._timeout_seconds:g} s: {self._trouble}; restart it from a checkpoint together with "
                f"the others",
                [self._peers.rank],
            )


def group_finished(peers: Peers) -> GroupFinished | None:
    """The error, if every other rank has finished or its process has ended."""
    answers: dict[int, int | str] = {}
    for rank in peers.doors:
        answers[rank] = _status(peers, rank)
        if answers[rank] != "finished":
            return None
    return _finished(answers)


def _finished(answers: dict[int, int | str]) -> GroupFinished | None:
    if any(answer != "finished" for answer in answers.values()):
        return None
    return GroupFinished(
        "all other ranks have finished, or their processes have ended, so this one cannot train on. End the "
        "training loop here as well, and use the result of another rank",
        sorted(answers),
    )


def _status(peers: Peers, rank: int) -> int | str:
    """Its step, or why it gives no snapshot."""
    try:
        answer = peers.ask(rank, {"ask": "step"})
        return int(answer["step"]) if answer["standing"] == "training" else str(answer["standing"])
    except Refused:
        return "finished" if peers.has_finished(rank) else "silent"
    except (OSError, ChannelError, KeyError, ValueError):
        return "silent"


def _checked(capture: dict[str, Any], step: int) -> dict[str, Any]:
    """ValueError or KeyError: it is not what a donor says."""
    sizes = [int(capture[name][size]) for name in ("shared", "buffers") for size in ("manifest", "bytes")]
    if int(capture["step"]) != step or min(sizes) < 0 or sum(sizes) > _MOST_BYTES:
        raise ValueError("not a capture of this step")
    int(capture["completed"]), int(capture["operations"])
    str(capture["shared"]["digest"]), str(capture["buffers"]["digest"])
    return capture


def _image(manifest: bytearray, body: bytearray) -> Image:
    tensors = [torch.frombuffer(body, dtype=torch.uint8)] if body else []
    return Image(bytes(manifest), tensors)


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
