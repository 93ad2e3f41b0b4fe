"""Percentiles that everything here is reported in."""

from __future__ import annotations

from optireduce.page.quantiles import percentile


def test_percentiles_are_values_of_the_sample() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.99), percentile(values, 0.5), percentile([7.0], 0.99)) == (99.0, 50.0, 7.0)
