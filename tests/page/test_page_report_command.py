"""`optireduce report`: which files make which run, what is printed and written, how mistakes are answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from synthetic_runs import operation, step, write, write_run

from optireduce.cli.errors import CommandFailed, UsageError
from optireduce.cli.report import progress
from optireduce.cli.report.command import report
from optireduce.cli.report.inputs import parse_inputs

APP = typer.Typer()
APP.command()(report)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> None:
    APP(list(arguments), standalone_mode=False)


def test_two_runs_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("logs/gloo"), "gloo", steps=60)
    write_run(Path("logs/ours"), "optireduce", steps=60)
    call("logs/gloo", "optireduce=logs/ours", "--png", "plots/new")
    printed = capsys.readouterr()
    assert "gloo" in printed.out
    assert "step time, p99 / p50" in printed.out
    assert "page: report.html" in printed.out
    assert printed.err == ""  # no progress bar for what is quick
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<h1>Training: gloo, optireduce</h1>" in page
    names = sorted(path.name for path in Path("plots/new").iterdir())
    assert names == [
        "deadlines-2.png", "held-out-loss.png", "late-ranks.png", "step-times.png", "training-loss.png",
        "waited-for.png",
    ]  # fmt: skip
    assert page.count("<svg") == len(names)


def test_neither_torch_nor_pyplot_is_needed() -> None:
    """Pages are made on laptops too, and pyplot would look for a display. A process of its own shows it."""
    write(Path("a.jsonl"), [operation()])
    script = (
        "import sys, typer\n"
        "from optireduce.cli.report import report\n"
        "app = typer.Typer()\n"
        "app.command()(report)\n"
        "assert 'matplotlib' not in sys.modules\n"
        "app(['a.jsonl'], standalone_mode=False)\n"
        "print('loaded:', [name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout


def test_labels_that_are_markup_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("a.jsonl"), [step(0, 1, 0.5, 1.0)])
    call("<script>[red]=a.jsonl", "--out", "[b].html")
    printed = capsys.readouterr().out
    assert "<script>[red]" in printed
    assert "page: [b].html" in printed
    page = Path("[b].html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;[red]" in page


def test_paths_become_runs() -> None:
    for name in ("logs/a.jsonl", "logs/b.jsonl", "logs/c.txt", "x=y.jsonl", "logs/deep/d.jsonl"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    a, b, c, d = Path("logs/a.jsonl"), Path("logs/b.jsonl"), Path("logs/c.txt"), Path("logs/deep/d.jsonl")
    assert parse_inputs(["logs"]) == {"logs": [a, b]}
    assert parse_inputs(["logs/*.jsonl"]) == {"a": [a], "b": [b]}
    assert parse_inputs(["run=logs/*.jsonl"]) == {"run": [a, b]}
    assert parse_inputs(["run=logs/**/*.jsonl"]) == {"run": [a, b, d]}
    assert parse_inputs(["r=logs/c.txt", "s=logs/b.jsonl", "r=logs"]) == {"r": [c, a, b], "s": [b]}
    assert parse_inputs(["r=logs", "r=logs/a.jsonl"]) == {"r": [a, b]}  # a file counts once
    assert parse_inputs(["./x=y.jsonl"]) == {"x=y": [Path("x=y.jsonl")]}
    os.chdir("logs")
    assert parse_inputs(["."]) == {"logs": [Path("a.jsonl"), Path("b.jsonl")]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing.jsonl"], "'nothing.jsonl': there is no such file"),
        (["a=no-*.jsonl"], "'no-*.jsonl': there is no such file"),
        (["empty"], "'empty': the folder has no *.jsonl file"),
        (["=a.jsonl"], "'=a.jsonl' is not complete; write LABEL=PATH"),
        (["a="], "'a=' is not complete"),
        (["a\x1b=a.jsonl"], "is no label"),
        (["a.jsonl", "--out", "none/r.html"], "--out: 'none/r.html' cannot be written"),
        (["a.jsonl", "--out", "empty"], "--out: 'empty' cannot be written"),
        (["a.jsonl", "--png", "a.jsonl"], "--png: 'a.jsonl' is a file; name a folder"),
    ],
)
def test_bad_input_is_named(arguments: list[str], complaint: str) -> None:
    Path("empty").mkdir()
    write(Path("a.jsonl"), [operation()])
    with pytest.raises(UsageError) as error:
        call(*arguments)
    assert complaint in str(error.value)
    assert not Path("report.html").exists()


def test_logs_without_a_record_are_an_error() -> None:
    Path("a.jsonl").write_text("\n")
    write(Path("b.jsonl"), [operation()])
    with pytest.raises(CommandFailed, match=r"a: no operation, step or loss is logged in a\.jsonl"):
        call("b.jsonl", "a.jsonl")


def test_a_broken_log_is_an_error_with_its_place() -> None:
    Path("a.jsonl").write_text("no json\n{}\n")
    with pytest.raises(CommandFailed, match=r"a\.jsonl, line 1: not JSON"):
        call("a.jsonl")


def test_without_matplotlib_there_is_still_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("a.jsonl"), [operation()])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CommandFailed, match=r"pip install 'optireduce\[plots\]'"):
        call("a.jsonl")
    assert "operation time, p50" in capsys.readouterr().out


def test_the_bar_shows_up_only_when_reading_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with progress.reading(5_000_000, clock=lambda: now) as advance:
        advance(1_000_000)
        assert capfd.readouterr().err == ""
        now = 10.0
        advance(4_000_000)
    assert "5/5" in capfd.readouterr().err
