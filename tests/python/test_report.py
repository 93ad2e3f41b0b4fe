"""Reports are what users judge a run by: every figure of the core must arrive, under the right name."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest
from fake_engine import DEFAULTS, fake_group, raw_report

from optireduce import LeftBehind, PeerError, RankLostError, Report, TooFewRanksError
from optireduce.report import report_of, step_report

LATE = {
    "closed_by": "deadline",
    "view": 3,
    "members": [0, 1, 2, 3],
    "excluded": [(2, 1_200), (3, 400)],
    "void_bytes": 400,
    "non_finite": [1],
    "waited_for": 2,
    "waited_seconds": 0.3,
}


def test_every_figure_of_the_core_arrives() -> None:
    numbers = {
        name: 100 + index
        for index, (name, value) in enumerate(DEFAULTS.items())
        if type(value) in (int, float)
    }
    report = report_of(raw_report(7, 4_000, **{**numbers, **LATE, "error_code": 0}))
    of_the_core = set(DEFAULTS) - {"error_code", "error", "ranks", "holes"}
    assert {field.name for field in fields(Report)} == of_the_core | {"operation", "bytes"}
    for name in of_the_core - LATE.keys() - {"bounded"}:
        assert getattr(report, name) == numbers[name], name
    assert (report.operation, report.bytes, report.bounded) == (7, 4_000, True)
    assert (report.members, report.excluded, report.non_finite) == ((0, 1, 2, 3), {2: 1_200, 3: 400}, (1,))
    assert (report.waited_for, report.waited_seconds, report.view) == (2, 0.3, 3)


def test_shares_are_of_all_contributions() -> None:
    report = report_of(raw_report(0, 4_000, **LATE, lost_contribution_bytes=100, lost_decision_bytes=300))
    assert report.excluded_share == 0.1
    assert report.loss_share == 0.1
    assert report.timed_out
    assert Report(-1, 0, 0.0).excluded_share == Report(-1, 0, 0.0).loss_share == 0.0


def test_reports_travel_and_serve_as_keys() -> None:
    report = report_of(raw_report(0, 4_000, **LATE))
    assert pickle.loads(pickle.dumps(report)) == report
    assert len({report, report_of(raw_report(0, 4_000, **LATE))}) == 1


def test_a_step_is_its_buckets_together() -> None:
    good = Report(0, 1_000, 0.1, repaired_bytes=5, members=(0, 1), view=1, waited_for=1, waited_seconds=0.2)
    early = Report(1, 1_000, 0.1, closed_by="early", members=(0, 1), excluded={1: 300}, oldest_steps=2)
    late = Report(
        2,
        2_000,
        0.1,
        closed_by="deadline",
        view=2,
        members=(0,),
        excluded={0: 100, 1: 200},
        void_bytes=60,
        carried_bytes=7,
        residual_bytes=100,
        dropped_bytes=3,
        oldest_steps=1,
        waited_for=0,
        waited_seconds=0.1,
    )
    step = step_report(4, [good, early, late], 0.3)
    assert (step.step, step.buckets, step.bytes, step.elapsed_seconds) == (4, 3, 4_000, 0.3)
    assert (step.repaired_bytes, step.void_bytes, step.carried_bytes) == (5, 60, 7)
    assert (step.residual_bytes, step.dropped_bytes, step.oldest_steps) == (100, 3, 2)
    assert (step.excluded, step.excluded_share) == ({0: 100, 1: 500}, 0.1)
    assert (step.waited_for, step.waited_seconds) == (1, 0.2)
    assert (step.view, step.members) == (2, (0,))
    assert step.timed_out


def test_an_early_end_is_no_timeout() -> None:
    assert not step_report(0, [Report(0, 1, 0.1, closed_by="early")], 0.1).timed_out


@pytest.mark.parametrize(("code", "kind"), [(4, TooFewRanksError), (5, LeftBehind), (6, RankLostError)])
def test_errors_of_the_group_say_what_happened(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[PeerError]
) -> None:
    communicator, engine = fake_group(monkeypatch)
    engine.outcome = {"error_code": code, "error": "what happened", "ranks": [1, 3]}
    with pytest.raises(kind, match="what happened") as caught:
        communicator.all_reduce(np.zeros(4, np.float32))
    assert caught.value.ranks == (1, 3)
