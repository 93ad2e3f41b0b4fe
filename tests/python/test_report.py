"""Reports are what users judge a run by: every figure of the core must arrive, under the right name."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from fake_engine import fake_group, raw_report

from optireduce import PeerError, PeerLoss, Report, TooFewRanksError
from optireduce.report import report_of, step_report

LOSSY = {
    "elapsed_seconds": 0.5,
    "repaired_bytes": 11,
    "closed_by": "deadline",
    "contributions_lost_bytes": 100,
    "reduced_lost_bytes": 300,
    "lost_by_peer": [(2, 400, 0), (1, 0, 300)],
    "absent": [3],
    "bound_seconds": 0.4,
    "early_seconds": 0.3,
    "early_fraction": 0.2,
    "incast": 5,
    "window_bytes": 6,
    "rtt_seconds": 0.7,
    "rate_bytes_per_second": 8.0,
    "behind_seconds": -0.9,
}


def test_every_figure_of_the_core_arrives() -> None:
    report = report_of(raw_report(7, 4_000, **LOSSY))
    assert report == Report(
        operation=7,
        bytes=4_000,
        elapsed_seconds=0.5,
        repaired_bytes=11,
        bounded=True,
        closed_by="deadline",
        contributions_lost_bytes=100,
        reduced_lost_bytes=300,
        lost_by_peer={2: PeerLoss(contributions_bytes=400, reduced_bytes=0), 1: PeerLoss(0, 300)},
        absent=(3,),
        bound_seconds=0.4,
        early_seconds=0.3,
        early_fraction=0.2,
        incast=5,
        window_bytes=6,
        rtt_seconds=0.7,
        rate_bytes_per_second=8.0,
        behind_seconds=-0.9,
    )


def test_loss_is_told_by_stage_and_as_a_whole() -> None:
    report = report_of(raw_report(0, 4_000, **LOSSY))
    assert (report.contributions_lost_share, report.reduced_lost_share) == (0.025, 0.075)
    assert (report.lost_bytes, report.loss_share) == (400, 0.1)
    assert report.timed_out
    assert Report(-1, 0, 0.0).loss_share == 0.0


def test_reports_travel_and_serve_as_keys() -> None:
    report = report_of(raw_report(0, 4_000, **LOSSY))
    assert pickle.loads(pickle.dumps(report)) == report
    assert len({report, report_of(raw_report(0, 4_000, **LOSSY))}) == 1


def test_a_step_is_as_bad_as_its_buckets_together() -> None:
    good = Report(0, 1_000, 0.1, repaired_bytes=5)
    early = Report(1, 1_000, 0.1, closed_by="early", contributions_lost_bytes=30, absent=(2,))
    late = Report(2, 2_000, 0.1, closed_by="deadline", reduced_lost_bytes=50, absent=(1, 2))
    step = step_report(4, [good, early, late], 0.3)
    assert (step.step, step.buckets, step.bytes, step.elapsed_seconds) == (4, 3, 4_000, 0.3)
    assert (step.repaired_bytes, step.contributions_lost_bytes, step.reduced_lost_bytes) == (5, 30, 50)
    assert (step.lost_bytes, step.loss_share) == (80, 0.02)
    assert step.timed_out
    assert step.absent == (1, 2)


def test_an_early_end_is_no_timeout() -> None:
    assert not step_report(0, [Report(0, 1, 0.1, closed_by="early")], 0.1).timed_out


def test_too_few_ranks_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator, engine = fake_group(monkeypatch)
    engine.outcome = {"error_code": 4, "error": "2 of 5 ranks are there, 3 are needed", "ranks": [1, 3, 4]}
    with pytest.raises(TooFewRanksError, match="3 are needed") as caught:
        communicator.all_reduce(np.zeros(4, np.float32))
    assert isinstance(caught.value, PeerError)
    assert caught.value.ranks == (1, 3, 4)
