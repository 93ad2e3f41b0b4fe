"""Studies in the lab, in their quick form: tables, plots and verdicts exist, whatever they say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from optireduce.cli import main
from optireduce.experiments.catalogue import STUDIES
from optireduce.experiments.tta import Cell, Row, _by_seed, _learning
from optireduce.trials.training.outcome import HeldOut, Outcome

IN_THE_LAB = [name for name, study in STUDIES.items() if study.needs_lab]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
@pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc")
@pytest.mark.parametrize("name", IN_THE_LAB)
def test_a_study_in_the_lab_leaves_numbers_plots_and_a_page(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", name, "--quick", "--out", str(tmp_path)]) == 0
    assert "hold" in capsys.readouterr().out  # or not: it is the quick form
    folder = tmp_path / name
    found = json.loads((folder / "findings.json").read_text())
    assert found["study"] == name
    assert found["verdicts"]
    assert found["tables"][0]["rows"]
    assert found["machine"]["date"]
    assert any("hosts" in note for note in found["notes"])
    assert list(folder.glob("*.png"))
    assert "<svg" in (folder / "index.html").read_text()


def test_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in STUDIES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-study"], "'no-such-study' is not a study; there are: tail-cdf"),
        (["tta", "--hosts", "1"], "--hosts: '1' is not valid"),
        (["tta", "--environments", "windy"], "'windy' is not known"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *arguments]) == 2
    assert words in capsys.readouterr().err


def cell(system: str, *losses_at_10: float) -> Cell:
    outcomes = [
        Outcome("x", seed, held_out=[HeldOut(0, 0.0, 4.0), HeldOut(9, 10.0, loss)])
        for seed, loss in enumerate(losses_at_10)
    ]
    return Cell(system, outcomes)


def row(gloo: list[float], ours: list[float]) -> Row:
    return Row(4, "quiet", [cell("gloo", *gloo), cell("optireduce", *ours)])


def test_the_speed_up_is_gloos_time_over_ours() -> None:
    assert row([2.0], [0.0]).speedup("optireduce", 2.0) == pytest.approx(2.0)
    assert row([2.0, 2.0], [2.0, 0.0]).speedup("optireduce", 2.0) == pytest.approx(10 / 7.5)
    assert row([2.0], [0.0]).speedup("gloo", 2.0) == 1.0


def test_all_seeds_of_a_system_are_curves_of_one_name() -> None:
    names = [series.name for series in _learning(row([2.0, 2.1], [0.0, 0.1]), 2.0).series]
    assert names == ["gloo", "gloo", "optireduce", "optireduce", "target"]


def test_a_seed_that_never_got_there_leaves_no_speed_up() -> None:
    assert row([2.0, 3.0], [0.0, 0.0]).speedup("optireduce", 2.0) is None


def test_each_seeds_speed_up_is_told() -> None:
    assert _by_seed(row([2.0, 2.0, 3.0], [2.0, 0.0, 0.0]), "optireduce", 2.0) == "1.00, 2.00, -"
