"""exact() is read by code that runs inside it, and only there."""

from __future__ import annotations

import pytest

import optireduce
from optireduce.exactness import exact_requested


def test_exact_holds_inside_and_ends_with_the_block() -> None:
    assert not exact_requested()
    with optireduce.exact():
        with optireduce.exact():
            pass
        assert exact_requested()
    assert not exact_requested()


def test_exact_ends_when_the_block_fails() -> None:
    with pytest.raises(KeyError), optireduce.exact():
        raise KeyError
    assert not exact_requested()
