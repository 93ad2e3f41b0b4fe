"""What a flush does when a rank is lost in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from optireduce import RankLostError
from optireduce.flush import means_of_residuals
from optireduce.streams import Layout


class Residuals:
    """One stream."""

    def take_all(self) -> Iterator[tuple[Layout, torch.Tensor]]:
        yield Layout(1, 2, ()), torch.ones(2)


class Handle:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise self._error


def flush(outcomes: list[Exception | None], may_go_on: bool) -> list[Any]:
    handles = iter([Handle(outcome) for outcome in outcomes])
    streams: Any = Residuals()
    all_reduce: Any = lambda _: next(handles)  # noqa: E731
    return means_of_residuals(streams, all_reduce, lambda: may_go_on)


def test_what_a_lost_rank_failed_is_repeated_without_it() -> None:
    assert len(flush([RankLostError("rank 1", [1]), None], may_go_on=True)) == 1


def test_where_membership_is_fixed_nothing_is_repeated() -> None:
    with pytest.raises(RankLostError):
        flush([RankLostError("rank 1", [1]), None], may_go_on=False)
