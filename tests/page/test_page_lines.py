"""Logs are written by many processes, some of which died: what is whole must count, whatever its order, and
what is wrong must be named with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import START, held_out, operation, step, write

from optireduce.page.errors import PageError
from optireduce.page.log_lines import Operation, Step, parse_line
from optireduce.page.run_sections import run_sections
from optireduce.page.run_summary import summarize, summary_table
from optireduce.page.runs import Run, read_run

RANK = st.integers(0, 5)
TIME = st.floats(START, START + 1_000)
SECONDS = st.floats(0, 100)
LOSS = st.none() | st.floats(-10, 10)
OPERATIONS = st.builds(
    operation,
    rank=RANK,
    time=TIME,
    error=st.none() | st.sampled_from(["timeout", "rank 1 left"]),
    elapsed_seconds=SECONDS | st.just(math.inf),
    stood_still_seconds=SECONDS,
    behind_seconds=st.floats(-1, 1),
    bounded=st.booleans(),
    deadline_seconds=SECONDS,
    usual_seconds=SECONDS,
    closed_by=st.sampled_from(["complete", "early", "deadline"]),
    lost_decision_bytes=st.integers(0, 1_000_000),
    excluded=st.dictionaries(RANK, st.integers(0, 1000)),
    view=st.integers(0, 3),
    members=st.sets(RANK).map(sorted).map(tuple),
    waited_for=st.none() | RANK,
    waited_seconds=SECONDS,
    carried_bytes=st.integers(0, 1000),
    repaired_bytes=st.integers(0, 1000),
)
STEPS = st.builds(step, RANK, st.integers(0, 20), SECONDS, LOSS, TIME)
EVALUATIONS = st.builds(held_out, RANK, st.integers(0, 20), LOSS, TIME)
OTHERS = st.sampled_from([{"kind": "epoch"}, {"kind": "checkpoint", "rank": 1}])
RECORDS = st.lists(OPERATIONS | STEPS | EVALUATIONS | OTHERS, min_size=1, max_size=40)


def run_of(*records: dict[str, Any]) -> Run:
    run = Run("run")
    for record in records:
        run.add(parse_line(json.dumps(record).encode()))
    return run


@settings(deadline=None)
@given(RECORDS, st.randoms(use_true_random=False))
def test_the_order_of_lines_changes_nothing(records: list[dict[str, Any]], random: Any) -> None:
    mixed = list(records)
    random.shuffle(mixed)
    assert run_sections([run_of(*records)]) == run_sections([run_of(*mixed)])


def test_summary_counts_what_was_logged() -> None:
    summary = summarize(
        run_of(
            step(0, 1, 0.25, 2.0),
            step(1, 1, 0.5, 4.0, START + 0.25),
            step(0, 2, 0.125, None),
            operation(
                0,
                elapsed_seconds=0.5,
                closed_by="deadline",
                excluded={1: 750_000, 2: 250_000},
                members=(0, 1, 2, 3),
                view=1,
                waited_for=1,
                waited_seconds=0.75,
            ),
            operation(
                1,
                elapsed_seconds=0.25,
                repaired_bytes=7,
                carried_bytes=5,
                stood_still_seconds=0.125,
                members=(0, 1, 2),
                view=2,
                waited_for=2,
                waited_seconds=0.25,
            ),
            operation(2, elapsed_seconds=60.0, error="rank 3 left", excluded={0: 1_000_000}, members=(0,)),
        )
    )
    assert (summary.ranks, summary.steps, summary.operations, summary.errors) == (3, 2, 3, 1)
    assert summary.step_seconds == [0.125, 0.5]  # until the last rank was through
    assert summary.operation_seconds == [0.25, 0.5]  # the failed one does not count
    assert (summary.missing_share, summary.most_missing) == (0.125, 0.25)
    assert summary.closed_by == [1, 0, 1]
    assert (summary.repaired_bytes, summary.carried_bytes, summary.stood_still_seconds) == (7, 5, 0.125)
    assert (summary.views, summary.out_of_view) == (2, [3])
    assert (summary.waited_for, summary.waited_seconds, summary.waited_share) == (1, 0.75, 0.75)


def test_percentiles_of_the_table_are_those_of_steps() -> None:
    run = run_of(*(step(0, number, number / 1000, None) for number in range(1, 101)))
    cells = dict(summary_table([run]).rows)  # type: ignore[arg-type]
    assert cells["step time, p50"] == "50.0 ms"
    assert cells["step time, p90"] == "90.0 ms"
    assert cells["step time, p99"] == "99.0 ms"
    assert cells["step time, max"] == "100 ms"
    assert cells["step time, p99 / p50"] == "1.98"
    assert cells["missed the deadline, of all contributions"] == "-"  # not logged is not zero
    assert cells["failed operations"] == "-"


def test_null_and_numbers_that_json_does_not_have_are_not_known() -> None:
    parsed = parse_line(json.dumps(operation(elapsed_seconds=math.inf)).encode())
    assert isinstance(parsed, Operation)
    assert math.isnan(parsed.elapsed_ms)
    parsed = parse_line(b'{"kind":"step","time":1,"rank":0,"step":3,"seconds":null,"loss":Infinity}')
    assert isinstance(parsed, Step)
    assert math.isnan(parsed.seconds)
    assert math.isnan(parsed.loss)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[1]", "lines are JSON objects"),
        ("{}", 'neither "kind" nor "operation"'),
        ('{"operation": 1, "rank": 0}', '"time" is missing'),
        ('{"operation": 1, "time": 1, "rank": -1}', '"rank" is -1; it must be a whole number'),
        ('{"operation": 1, "time": 1, "rank": true}', '"rank" is true'),
        ('{"operation": 1, "time": 1, "rank": 0, "deadline_ms": "5"}', '"deadline_ms" is 5; it must be'),
        ('{"operation": 1, "time": 1, "rank": 0, "deadline_ms": 1' + "0" * 400 + "}", "too much"),
        ('{"operation": 1, "time": 1, "rank": 0, "excluded": {"x": 1}}', 'like {"2": 100}'),
        ('{"operation": 1, "time": 1, "rank": 0, "excluded": {"2": [1, 2]}}', 'like {"2": 100}'),
        ('{"operation": 1, "time": 1, "rank": 0, "excluded": 3}', 'like {"2": 100}'),
        ('{"operation": 1, "time": 1, "rank": 0, "waited_for": "3"}', '"waited_for" is 3; it must be'),
        ('{"operation": 1, "time": 1, "rank": 0, "members": 3}', "list of ranks"),
        ('{"operation": 1, "time": 1, "rank": 0, "error": 3}', '"error" is 3; it must be a text'),
        (
            '{"kind": "step", "time": 1, "rank": 0, "step": 1e3}',
            '"step" is 1000.0; it must be a whole number',
        ),
        ('{"kind": "step", "time": 1, "rank": 0, "step": 99999999999999999999}', '"step" is 9999'),
    ],
)
def test_what_is_no_record_is_named_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(operation()) + "\n\n" + line + "\n")
    with pytest.raises(PageError) as error:
        read_run("run", [path])
    assert f"{path}, line 3: " in str(error.value)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "rest", ['{"operation": 2, "ti', "\udcff", "\0\0\0", '{"kind": "step"', "[" * 100_000]
)
def test_a_cut_off_last_line_is_only_noted(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(operation()) + "\n" + rest, errors="surrogateescape")
    run = read_run("mine", [path])
    assert len(run.operations.time) == 1
    notes = run_sections([run])[0].notes
    assert any("mine: the last line is cut off" in note and str(path) in note for note in notes)


def test_a_broken_line_elsewhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(operation()) + '\n{"operation": 2, "ti\n' + json.dumps(operation()) + "\n")
    with pytest.raises(PageError, match=r"log\.jsonl, line 2: not JSON"):
        read_run("run", [path])


def test_unknown_kinds_are_counted_and_named() -> None:
    run = run_of(operation(), {"kind": "epoch"}, {"kind": "epoch", "time": "?"}, {"kind": 7})
    notes = " ".join(run_sections([run])[0].notes)
    assert "7 (1), epoch (2)" in notes


def test_progress_adds_up_to_the_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", [operation()] * 4_000) for name in "ab"]
    told: list[int] = []
    read_run("run", paths, told.append)
    assert sum(told) == sum(path.stat().st_size for path in paths)
    assert len(told) > 2  # not only at the end of each file
