"""The demo end to end: in a lab, and where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from optireduce.cli import main
from optireduce.cli.demo import command
from optireduce.cli.errors import CommandFailed

pytestmark = pytest.mark.slow


def run(out: Path, *options: str) -> int:
    return main(["demo", "--steps", "4", "--hosts", "2", "--out", str(out), *options])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
@pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc")
def test_the_demo_trains_in_a_lab_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    for word in ("tail3, 2 hosts", "gloo", "optireduce", "held-out loss", "report.html"):
        assert word in out
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    for image in ("step-times", "held-out-loss"):
        assert (tmp_path / f"{image}.png").stat().st_size > 1_000


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
@pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc")
def test_the_demo_shows_who_survives_a_crash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--environment", "crash", "--steps", "50", "--hosts", "3", "--out", str(tmp_path)]
    assert main(["demo", *options]) == 0
    out = capsys.readouterr().out
    assert "gloo failed" in out
    assert "optireduce failed" not in out
    assert (tmp_path / "report.html").exists()


def test_without_a_lab_the_ranks_meet_on_loopback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise CommandFailed("a lab needs root")

    monkeypatch.setattr(command, "become_able", refuse)
    monkeypatch.chdir(tmp_path)
    assert run(Path("reports/demo")) == 0  # a relative path, as in `make demo`
    out = capsys.readouterr().out
    assert "no lab here" in out
    assert "2 ranks, loopback" in out
    assert (tmp_path / "reports/demo/report.html").exists()


def test_an_unknown_environment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--environment", "windy") == 2
    assert "'windy' is not known" in capsys.readouterr().err
