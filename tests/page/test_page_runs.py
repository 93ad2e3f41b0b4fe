"""The plots must show what happened: which rank was late or excluded, when, and who was a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import START, held_out, operation, step, write, write_run

from optireduce.page.figure import Figure
from optireduce.page.page import Section
from optireduce.page.run_figures import step_times
from optireduce.page.run_sections import run_sections
from optireduce.page.runs import Run, read_run
from optireduce.page.statistics import MOST_BINS, bins, mean_by_step, step_durations


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    folder = tmp_path_factory.mktemp("logs")
    return run_sections([_read(write_run(folder / name, name)) for name in ("gloo", "optireduce")])


def _read(folder: Path) -> Run:
    return read_run(folder.name, sorted(folder.glob("*.jsonl")))


def _figures(sections: list[Section]) -> dict[str, Figure]:
    return {figure.name: figure for section in sections for figure in section.figures}


def _notes(sections: list[Section]) -> str:
    return " ".join(note for section in sections for note in section.notes)


def test_every_plot_that_has_data_is_there(sections: list[Section]) -> None:
    assert {
        name: [series.name for series in figure.series] for name, figure in _figures(sections).items()
    } == {
        "step-times": ["gloo", "optireduce"],
        "held-out-loss": ["gloo", "optireduce"],
        "training-loss": ["gloo", "optireduce"],
        "missing-share": ["optireduce"],
        "excluded-2": ["rank 2"],
        "deadlines-2": ["operations", "the usual time", "the deadline"],
        "waited-for": ["optireduce"],
        "excluded-by-rank": ["optireduce"],
        "late-ranks": ["optireduce"],
    }


def test_the_excluded_rank_is_named(sections: list[Section]) -> None:
    bars = _figures(sections)["excluded-by-rank"]
    assert bars.categories == ["0", "1", "2", "3"]
    assert [share > 0 for share in bars.series[0].y] == [False, False, True, False]
    (curve,) = _figures(sections)["excluded-2"].series
    excluded = [x for x, y in zip(curve.x, curve.y, strict=True) if y > 0]
    assert curve.x[-1] * 0.28 < excluded[0] < excluded[-1] < curve.x[-1] * 0.55
    assert 15 < max(curve.y) <= 20  # per cent of its own contributions


def test_missed_deadlines_are_shown_when_they_happened(sections: list[Section]) -> None:
    (curve,) = _figures(sections)["missing-share"].series
    assert curve.high is not None
    missing = [x for x, high in zip(curve.x, curve.high, strict=True) if high > 0]
    assert curve.x[-1] * 0.3 < missing[0] < missing[-1] < curve.x[-1] * 0.55
    assert 3.7 < max(curve.high) <= 5  # per cent of all contributions: the worst operation


def test_the_rank_that_others_waited_for_is_in_the_headline(sections: list[Section]) -> None:
    assert "optireduce: ranks waited longest for rank 3 (" in sections[0].text
    assert "100.00 % of all waiting for late contributions" in sections[0].text
    waited, views = sections[-1].tables
    assert [row[0] for row in waited.rows] == ["3"]
    (bars,) = _figures(sections)["waited-for"].series
    assert [y > 0 for y in bars.y] == [False, False, False, True]
    assert [row[1:] for row in views.rows] == [("2", "1, 2, 3", "removed: rank 0")]


def test_views_are_events_in_their_order(tmp_path: Path) -> None:
    members = {1: (0, 1, 2), 2: (0, 1), 3: (0, 1, 2)}
    records = [
        operation(rank, START + 10 * view + rank, view=view, members=members[view])
        for view in (3, 1, 2)
        for rank in members[view]
    ]
    sections = run_sections([read_run("a", [write(tmp_path / "a.jsonl", records)])])
    (views,) = sections[-1].tables
    assert list(views.rows) == [
        ("10.0 s", "2", "0, 1", "removed: rank 2"),
        ("20.0 s", "3", "0, 1, 2", "returned: rank 2"),
    ]
    cells = dict(sections[0].tables[0].rows)  # type: ignore[arg-type]
    assert cells["membership views"] == "3"
    assert cells["ranks out of a view"] == "2"


def test_the_late_rank_stands_out(sections: list[Section]) -> None:
    (bars,) = _figures(sections)["late-ranks"].series
    assert bars.y[3] == pytest.approx(10, abs=1)
    assert all(abs(y) < 1 for y in bars.y[:3])


def test_deadlines_leave_out_operations_without_one(sections: list[Section]) -> None:
    operations, usual, deadline = _figures(sections)["deadlines-2"].series
    assert set(deadline.y) == {50.0}
    assert set(usual.y) == {30.0}
    assert operations.x[0] > 1  # the first 20 had none


def test_time_counts_from_the_first_record_of_a_run(tmp_path: Path) -> None:
    records = [held_out(0, 10, 2.0, START + 5), operation(0, START), held_out(0, 20, 1.0, START + 9)]
    run = read_run("run", [write(tmp_path / "log.jsonl", records)])
    (curve,) = _figures(run_sections([run]))["held-out-loss"].series
    assert (curve.x, curve.y) == ([5.0, 9.0], [2.0, 1.0])


def test_without_steps_operation_times_are_shown(tmp_path: Path) -> None:
    steps = read_run("a", [write(tmp_path / "a.jsonl", [step(0, 1, 0.5, None)])])
    operations = read_run("b", [write(tmp_path / "b.jsonl", [operation(elapsed_seconds=0.25)])])
    first, second = step_times([steps, operations])
    assert (first.name, first.series[0].name, first.series[0].x) == ("step-times", "a", [0.5])
    assert (second.name, second.series[0].name, second.series[0].x) == ("operation-times", "b", [0.25])


@pytest.mark.parametrize(("slowest", "log"), [(0.5, False), (5.0, True)])
def test_a_long_tail_gets_a_logarithmic_axis(tmp_path: Path, slowest: float, log: bool) -> None:
    records = [step(0, number, 0.1, None) for number in range(99)] + [step(0, 99, slowest, None)]
    (figure,) = step_times([read_run("a", [write(tmp_path / "a.jsonl", records)])])
    assert figure.x_log == log


def test_what_is_not_logged_is_said_with_how_to(tmp_path: Path) -> None:
    bare = run_sections([read_run("a", [write(tmp_path / "a.jsonl", [step(0, 1, 0.5, None)])])])
    assert "a: no operations logged" in _notes(bare)
    assert "OPTIREDUCE_OPERATION_LOG" in _notes(bare)
    assert "a: no loss on held-out data logged" in _notes(bare)
    full = run_sections([read_run("b", [write(tmp_path / "b.jsonl", [operation()])])])
    assert "b: no training steps logged; optireduce.page.training_log.TrainingLog" in _notes(full)
    assert "b: no contribution missed its deadline" in _notes(full)
    assert "missing-share" not in _figures(full)
    assert "no operations logged" not in _notes(full)


def test_failed_operations_are_told(tmp_path: Path) -> None:
    excluded = {"excluded": {1: 5}, "members": (0, 1), "waited_for": 1, "waited_seconds": 1.0}
    records = [operation(error="rank 1 left", **excluded), operation(error="rank 1 left"), operation()]
    sections = run_sections([read_run("a", [write(tmp_path / "a.jsonl", records)])])
    assert "a: 2 operations failed: rank 1 left" in _notes(sections)
    assert sections[-1].tables == []  # what a failed operation lacks says nothing about a rank


def test_bins_keep_every_value_and_leave_out_what_is_not_known() -> None:
    times = [float(number) for number in range(10_000)]
    values = [float("nan") if number % 2 else float(number) for number in range(10_000)]
    found = bins(times, values)
    assert len(found) == MOST_BINS
    assert sorted(value for one in found for value in one.values) == [float(x) for x in range(0, 10_000, 2)]
    assert [one.time for one in found] == sorted(one.time for one in found)
    assert bins([], []) == []
    assert len(bins([1.0, 1.0], [3.0, 2.0])) == 1


def test_losses_of_ranks_are_averaged_by_step() -> None:
    assert mean_by_step([2, 1, 1], [9.0, 5.0, 4.0], [7.0, 1.0, 3.0]) == ([5.0, 9.0], [2.0, 7.0])


def test_steps_add_up_to_the_time_that_training_took() -> None:
    """Two ranks of which one is late in each step: the slowest of each step would add up to 5 s."""
    steps = [1, 1, 2, 2]
    ends = [START + 1.0, START + 2.0, START + 4.0, START + 3.0]
    seconds = [1.0, 2.0, 3.0, 1.0]  # the first rank then waited for nobody
    assert step_durations(steps, ends, seconds) == [2.0, 2.0]
    assert step_durations([7], [START], [float("nan")]) == []


def test_a_clock_that_is_ahead_does_not_lengthen_steps() -> None:
    assert step_durations([1, 1], [START, START + 3_600], [0.5, 0.4]) == [0.4]


def test_deadlines_are_those_of_the_size_that_carries_most_data(tmp_path: Path) -> None:
    def given(size: int, bound: float, time: float) -> dict[str, Any]:
        return operation(time=START + time, bytes=size, bounded=True, deadline_seconds=bound)

    records = [given(24, 9.0, number) for number in range(100)]  # many, but small
    records += [given(1_000_000, 0.1, number) for number in range(100)]
    records.append(given(3_000_000, 3.0, 100))  # large, but one
    figures = _figures(run_sections([read_run("a", [write(tmp_path / "a.jsonl", records)])]))
    assert set(figures["deadlines-1"].series[-1].y) == {100.0}
    assert "Operations of 1.00 MB" in figures["deadlines-1"].caption


def test_a_missing_share_is_one_of_data_not_of_operations(tmp_path: Path) -> None:
    records = [
        operation(bytes=900_000, lost_decision_bytes=90_000),
        operation(bytes=24, lost_decision_bytes=24),
        operation(bytes=100_000),
    ]
    sections = run_sections([read_run("a", [write(tmp_path / "a.jsonl", records)])])
    cells = dict(sections[0].tables[0].rows)  # type: ignore[arg-type]
    assert cells["missed the deadline, of all contributions"] == "9.00 %"
    assert cells["missed the deadline, most in an operation"] == "100.00 %"
    (curve,) = _figures(sections)["missing-share"].series
    assert curve.y == [pytest.approx(9.0, abs=0.01)]
    assert curve.high == [100.0]


def test_runs_are_compared_with_the_first_one_in_a_sentence(tmp_path: Path) -> None:
    slow = [step(0, 1, 0.5, None), held_out(0, 1, 2.5)]
    fast = [step(0, 1, 0.25, None), held_out(0, 1, 2.51)]
    runs = [
        read_run(name, [write(tmp_path / f"{name}.jsonl", records)])
        for name, records in {"slow": slow, "fast": fast, "bare": [operation()]}.items()
    ]
    assert run_sections(runs)[0].text == (
        "slow's mean step takes 2.00 times as long as fast's; "
        "their last held-out losses are 2.5000 and 2.5100."
    )
    assert run_sections(runs[1:])[0].text == ""
    assert run_sections(runs[:1])[0].text == ""
