"""Calibration: trials come nearer to the tail that was asked for, and say so where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optireduce.cli.console import progress_bar
from optireduce.cli.lab.calibrate import teller
from optireduce.lab import Lab, find_environment
from optireduce.trials import calibration
from optireduce.trials.calibrated import Scope, recall, remember
from optireduce.trials.calibration import Calibration, Trial, find, next_length

SCOPE = Scope(4, "200mbit", 4 << 20)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def calibrate(
    monkeypatch: pytest.MonkeyPatch, tail_of: Callable[[float], float], name: str = "tail3"
) -> Calibration:
    """With a network whose tail is a function of the bursts' length."""

    def trial(lab: Lab, environment: Any, *_: Any) -> Trial:
        length = environment.bursts.on_ms
        return Trial(length, tail_of(length), 0.3)

    monkeypatch.setattr(calibration, "_try", trial)
    return find(
        cast(Lab, None), find_environment(name), 4 << 20, 1, lambda note, done: None, lambda trial: None
    )


def test_a_network_that_fits_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrate(monkeypatch, lambda length: 1 + length / 100)
    assert found.reached
    assert len(found.trials) == 1


@pytest.mark.parametrize("factor", [0.3, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("name", ["tail1.5", "tail3", "tail5"])
def test_another_network_is_calibrated_in_a_few_trials(
    monkeypatch: pytest.MonkeyPatch, factor: float, name: str
) -> None:
    found = calibrate(monkeypatch, lambda length: 1 + factor * length / 100, name)
    assert found.reached, found.trials
    assert found.environment.bursts is not None
    assert found.ratio == pytest.approx(1 + factor * found.environment.bursts.on_ms / 100)


def test_a_tail_that_cannot_be_reached_gives_the_nearest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrate(monkeypatch, lambda length: 1.2)
    assert not found.reached
    assert found.ratio == 1.2
    assert len(found.trials) == 5


@given(on_ms=st.floats(1, 5_000), ratio=st.floats(0.9, 30), target=st.floats(1.2, 10))
def test_the_next_length_goes_the_right_way_and_not_too_far(
    on_ms: float, ratio: float, target: float
) -> None:
    following = next_length(Trial(on_ms, ratio, 0.3), target)
    assert on_ms / 2.5 <= following * 1.0001
    assert following <= on_ms * 2.5001
    if ratio > target * 1.001:
        assert following < on_ms
    elif ratio < target * 0.999 and ratio > 1.06:
        assert following > on_ms


def test_what_was_found_is_used_later_for_the_same_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrate(monkeypatch, lambda length: 1 + length / 50)
    remember(found, SCOPE)
    environment, line = recall(find_environment("tail3"), SCOPE)
    assert environment == found.environment
    assert "calibrated 20" in line
    other, line = recall(find_environment("tail3"), Scope(8, "200mbit", 4 << 20))
    assert other == find_environment("tail3")
    assert "not calibrated" in line
    assert "lab calibrate tail3 --hosts 8" in line


def test_a_broken_cache_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "optireduce" / "lab.json"
    path.parent.mkdir()
    for text in ("{", "[1]"):
        path.write_text(text)
        assert recall(find_environment("tail3"), SCOPE)[0] == find_environment("tail3")


def test_environments_without_a_tail_are_left_as_they_are() -> None:
    assert recall(find_environment("loss1"), SCOPE) == (
        find_environment("loss1"),
        "1 % of packets lost at random",
    )


def test_the_bar_of_a_trial_stays_full_until_the_next_one_moves_it() -> None:
    progress = progress_bar(redraws_itself=False)
    advance = teller(progress, progress.add_task("tail3", total=20, note=""))
    advance("a block", 20)
    advance("what ranks tell at the end", 0)
    assert progress.tasks[0].completed == 20
    advance("the next trial", 10)
    assert progress.tasks[0].completed == 10
