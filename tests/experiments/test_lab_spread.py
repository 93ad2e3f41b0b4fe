"""What is said about the trust in figures of one run: rounds are the unit, and the same for all systems."""

from __future__ import annotations

from statistics import fmean

import pytest

from optireduce.experiments import tail_drop_speedup
from optireduce.experiments.lab_spread import Interval, interval
from optireduce.trials.allreduce.comparison import Comparison, Measured


def comparison(**seconds: list[float]) -> Comparison:
    """One rank's times of each system."""
    return Comparison(
        {name: Measured([[{"seconds": time} for time in times]]) for name, times in seconds.items()}
    )


def test_systems_that_share_their_bursts_are_compared_within_rounds() -> None:
    """Each round is slow or fast for both: their ratio is sure, though neither mean is."""
    slow = [1.0] * 5 + [3.0] * 5 + [1.0] * 5 + [9.0] * 5
    found = comparison(a=slow, b=[time / 2 for time in slow])
    assert interval(found, 5, lambda of: fmean(of("a")) / fmean(of("b"))) == Interval(2.0, 2.0)
    alone = interval(found, 5, lambda of: fmean(of("a")))
    assert alone.low < 2.0 < 5.0 < alone.high


def test_a_round_is_drawn_whole() -> None:
    """Two rounds, each alike in itself: their mean is one of three, however many operations they have."""
    found = comparison(a=[1.0] * 50 + [2.0] * 50)
    assert interval(found, 50, lambda of: fmean(of("a"))) == Interval(1.0, 2.0)
    assert interval(found, 100, lambda of: fmean(of("a"))) == Interval(1.5, 1.5)


def test_an_interval_in_words() -> None:
    assert Interval(1.234, 1.567).text() == "[1.23, 1.57]"
    assert Interval(0.1, 0.25).text(".0f", scale=1e3) == "[100, 250]"


def point(lost: float, low: float) -> dict[str, object]:
    speedup = (low + 0.1, Interval(low, low + 0.2))
    return {"deadline": "x", "lost": lost, "speedup_to_exact": speedup, "speedup_to_gloo": speedup}


@pytest.mark.parametrize(
    ("points", "holds"),
    [
        ([point(0.0, 0.9), point(0.01, 0.95), point(0.04, 1.05)], True),
        ([point(0.0, 0.9), point(0.01, 1.50), point(0.04, 0.95)], False),  # one lucky point is no trend
        ([point(0.0, 0.9), point(0.04, 1.05), point(0.30, 0.50)], True),  # not a few percent any more
    ],
)
def test_tail_drop_is_judged_by_what_drops_most_within_a_few_percent(
    points: list[dict[str, object]], holds: bool
) -> None:
    assert tail_drop_speedup._verdict(points).holds == holds
