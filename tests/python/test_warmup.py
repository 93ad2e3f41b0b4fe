"""Deadlines after the warm-up: they tighten step by step, and gradients through attach() have them."""

from __future__ import annotations

import math

import pytest
from fake_engine import fake_session
from hypothesis import given
from hypothesis import strategies as st

from optireduce import Config, _core
from optireduce.warmup import slack_of

WARMUP = st.integers(0, 10**6)


@given(WARMUP, st.integers(0, 10**7))
def test_later_steps_never_have_more_time(warmup: int, step: int) -> None:
    assert 1.0 <= slack_of(step + 1, warmup) <= slack_of(step, warmup)


@given(WARMUP)
def test_the_warm_up_has_no_deadline_and_three_times_as_many_steps_have_the_usual_one(warmup: int) -> None:
    assert slack_of(3 * warmup, warmup) == 1.0
    if warmup:
        assert slack_of(warmup - 1, warmup) == math.inf
        assert slack_of(warmup, warmup) == 3.0
        assert slack_of(2 * warmup, warmup) == 2.0


def test_gradients_have_the_slack_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with fake_session(monkeypatch, Config(interface="lo", warmup_steps=2)) as (model, session, engine):
        for _ in range(8):
            model(torch.ones(1, 8)).sum().backward()
        session.all_reduce_async(torch.zeros(4), weight=7).wait()
    assert [call.slack for call in engine.calls] == [math.inf, math.inf, 3.0, 2.5, 2.0, 1.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("slack", [0.99, 0.0, -1.0, math.nan])
def test_less_than_the_usual_time_is_refused(slack: float) -> None:
    engine = _core.Engine(0, 1, "127.0.0.1", "token", bytes(16), _core.EngineOptions())
    with pytest.raises(ValueError, match=r"slack .* is not 1 or more"):
        engine.all_reduce(0, 0, 0, 0, 1.0, slack=slack)
