"""A stranger's packets cost some time and nothing else; how much, `optireduce lab flood` measures."""

from __future__ import annotations

import pytest
from labs import needs_a_lab

from optireduce.lab import Lab, LabError
from optireduce.trials.soak.flood import run_flood
from optireduce.trials.soak.plan import SoakPlan


@needs_a_lab
def test_a_flood_changes_no_value_and_reaches_no_engine() -> None:
    plan = SoakPlan(hosts=3, seconds=38.0, size=240_000, least_chapter_seconds=19.0)  # two floods
    with Lab(hosts=plan.hosts, rate=None, offload=False) as lab:
        outcome = run_flood(lab, plan, packets_per_second=100_000)
    assert outcome.refused > 1_000
    assert outcome.reached == 0
    assert outcome.checks.compared > 0
    assert [*outcome.checks.problems(), *outcome.off] == []
    assert outcome.ended == []
    assert outcome.flooded
    assert outcome.quiet


@needs_a_lab
def test_a_host_without_ports_cannot_be_flooded() -> None:
    with Lab(hosts=1, rate=None) as lab, pytest.raises(LabError, match="open UDP port"):
        lab.flood(0, 1_000)
