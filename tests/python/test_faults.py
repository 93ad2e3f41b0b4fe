"""What a peer does wrong, or does not do, is an error on every rank that names it; never a hang, never a
wrong sum."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ranks import LIMIT_SECONDS, LOOPBACK, MemoryStore, group_outcomes, outcomes

from optireduce import Communicator, ConnectError, MismatchError, OperationTimeout, PeerLeftError


@pytest.mark.parametrize(
    ("kind", "values"),
    [("size", ("1000", "1001")), ("dtype", ("float32", "float16")), ("op", ("sum", "mean"))],
)
def test_mismatch_is_told_to_every_rank(kind: str, values: tuple[str, str]) -> None:
    def body(communicator: Communicator) -> Any:
        odd = communicator.rank == 1
        array = np.ones(
            1_001 if odd and kind == "size" else 1_000, np.float16 if odd and kind == "dtype" else np.float32
        )
        try:
            return communicator.all_reduce(array, "mean" if odd and kind == "op" else "sum")
        finally:
            everybody_heard.wait(LIMIT_SECONDS)  # or the last one would find that the others have left

    everybody_heard = threading.Barrier(3)
    for rank, error in enumerate(group_outcomes(3, body)):
        assert isinstance(error, MismatchError), (rank, error)
        assert all(value in str(error) for value in values), (rank, str(error))
        assert error.ranks


def test_missing_rank_times_out_and_is_named() -> None:
    config = replace(LOOPBACK, timeout_seconds=3.0)  # ranks begin less than so far apart

    others_failed = [threading.Event(), threading.Event()]

    def body(communicator: Communicator) -> Any:
        if communicator.rank == 2:
            return [failed.wait(LIMIT_SECONDS) for failed in others_failed]
        try:
            return communicator.all_reduce(np.ones(1_000, np.float32))
        finally:
            others_failed[communicator.rank].set()

    found = group_outcomes(3, body, config)
    for error in found[:2]:
        assert isinstance(error, OperationTimeout), error
        assert isinstance(error, TimeoutError)
        assert 2 in error.ranks


def test_rank_that_leaves_is_named_without_waiting_for_the_timeout() -> None:
    def body(communicator: Communicator) -> Any:
        if communicator.rank == 2:
            return None
        try:
            return communicator.all_reduce(np.ones(1_000, np.float32))
        finally:
            others_failed.wait(LIMIT_SECONDS)  # or the second one would find that two have left

    others_failed = threading.Barrier(2)
    found = group_outcomes(3, body, replace(LOOPBACK, timeout_seconds=1_000.0))
    for error in found[:2]:
        assert isinstance(error, PeerLeftError), error
        assert error.ranks == (2,)


class LyingStore(MemoryStore):
    """Tells everybody that rank 1 listens on ports where nobody does, as a firewall would make it seem."""

    def set(self, key: str, value: bytes) -> None:
        offer = json.loads(value)
        if key.endswith("/1/1") and isinstance(offer, dict) and "ports" in offer.get("value", {}):
            offer["value"]["ports"] = [1] * len(offer["value"]["ports"])
            value = json.dumps(offer).encode()
        super().set(key, value)


def test_unreachable_port_is_named_on_every_rank() -> None:
    store = LyingStore()
    config = replace(LOOPBACK, connect_timeout_seconds=1.0)
    found = outcomes(2, lambda rank: Communicator(rank, 2, store, config))
    for error in found:
        assert isinstance(error, ConnectError), error
        assert "firewall" in str(error)
        assert "127.0.0.1:1" in str(error)
        assert error.ranks


def test_rank_that_never_comes_is_named() -> None:
    store = MemoryStore()
    config = replace(LOOPBACK, timeout_seconds=3.0)  # the two begin less than so far apart
    for error in outcomes(2, lambda rank: Communicator(rank, 3, store, config)):
        assert isinstance(error, ConnectError), error
        assert error.ranks == (2,)
