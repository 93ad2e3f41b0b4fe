"""The command as a whole: bad input gives one line and exit code 2, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import optireduce.cli
from optireduce.cli import main


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["bench", "--sizes", "3Q"], ["--sizes", "'3Q'", "64K"]),
        (["bench", "--sizes", "6"], ["--sizes", "6", "float32", "4 bytes"]),
        (["bench", "--nproc", "1"], ["--nproc", "'1'", "at least 2"]),
        (["bench", "--nproc", "37"], ["--nproc", "37", "2 to 36"]),
        (["bench", "--backends", "gloo,gloo"], ["--backends", "'gloo' twice"]),
        (["bench", "--backends", "glue"], ["--backends", "'glue'", "gloo, optireduce"]),
        (["bench", "--dtype", "int8"], ["--dtype", "'int8'", "bfloat16"]),
        (["bench", "--rmem", "x"], ["--rmem", "'x'"]),
        (["bench", "--rmem", "1K"], ["--rmem", "'1K'", "from 16384"]),
        (["bench", "--json", "/nowhere/at/all.json"], ["--json", "/nowhere/at/all.json", "existing folder"]),
        (["bench", "--iters", "0"], ["--iters"]),
        (["bench", "--rounds", "many"], ["--rounds"]),
        (["demo", "--steps", "0"], ["--steps"]),
        (["demo", "--nproc", "1"], ["--nproc"]),
        (["doctor", "--peer", "somewhere"], ["--peer", "'somewhere'", "host:port"]),
        (["doctor", "--peer", "::1:9"], ["--peer", "[ipv6]:port"]),
        (["doctor", "--peer", "host:0"], ["--peer", "'host:0'"]),
        (["doctor", "--listen", "--peer", "a:1"], ["--listen", "--peer"]),
        (["--bogus"], ["--bogus"]),
        (["bogus"], ["bogus"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("optireduce: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    for part in parts:
        assert part in captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"optireduce {optireduce.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["bench", "--help"], ["demo", "-h"], ["doctor", "--help"]]
)
def test_help_exits_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "Usage: optireduce" in capsys.readouterr().out


def test_help_does_not_import_torch() -> None:
    """It would take seconds."""
    code = "import sys; from optireduce.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    folder = Path(optireduce.cli.__file__).parents[2]
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300, cwd=folder)
    assert finished.returncode == 0, finished.stderr.decode()
