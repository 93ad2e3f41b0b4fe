"""An operation that runs to completion returns the exact result, however bad the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ranks import LOOPBACK, group_results
from test_communicator import contribution, rank_order

from optireduce import Communicator


@pytest.mark.parametrize("drop", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("size", [2, 4])
def test_exact_under_loss_duplication_and_reordering(drop: float, size: int) -> None:
    config = replace(LOOPBACK, drop=drop, duplicate=0.05, reorder=0.1, impairment_seed=7, mtu=1500)
    lengths = [1, 1_000, 150_001, 300_007]

    def body(communicator: Communicator) -> list[bytes]:
        arrays = [contribution(communicator.rank, n, np.float32) for n in lengths]
        handles = [communicator.all_reduce_async(array, "sum") for array in arrays]
        for handle in handles:
            assert handle.wait().excluded == {}
        return [array.tobytes() for array in arrays]

    expected = [rank_order(size, n, np.float32, "sum").tobytes() for n in lengths]
    assert group_results(size, body, config) == [expected] * size


def test_repaired_bytes_are_counted() -> None:
    config = replace(LOOPBACK, drop=0.2, impairment_seed=3, mtu=1500)

    def body(communicator: Communicator) -> int:
        return communicator.all_reduce(np.ones(500_000, np.float32)).repaired_bytes

    assert sum(group_results(2, body, config)) > 0
