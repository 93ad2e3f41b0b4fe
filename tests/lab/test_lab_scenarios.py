"""Every named environment end to end: ranks on hosts of a lab, with Gloo beside ours where it survives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from labs import needs_a_lab

from optireduce.cli import main
from optireduce.lab import ENVIRONMENTS, ON_TIME, Lab
from optireduce.trials.training.outcome import Outcome
from optireduce.trials.training.plan import TrainingPlan
from optireduce.trials.training.run import run_training

pytestmark = pytest.mark.slow


@needs_a_lab
@pytest.mark.parametrize(
    "name", [name for name, found in ENVIRONMENTS.items() if not found.is_fault and found.late == ON_TIME]
)
def test_all_systems_take_turns_and_nothing_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    options = ["--hosts", "3", "--iterations", "4", "--block", "2", "--bytes", "384K", "--json", str(out)]
    systems = "gloo,tar-tcp,papers,optireduce" if name == "quiet" else "optireduce"  # imports no torch
    assert main(["lab", "bench", name, "--systems", systems, *options]) == 0
    assert name in capsys.readouterr().out
    found = {row["system"]: row for row in json.loads(out.read_text())["figures"]}
    assert list(found) == systems.split(",")
    for row in found.values():
        assert row["operations"] == 4
        assert row["wrong"] == 0
        assert row["unequal"] == 0 or row["system"] == "papers"
        assert row["cpu_seconds"] > 0
        assert row["sent_bytes"] > 2 * 2 / 3 * 384 * 1024 * 0.5, "less than half of what an all-reduce takes"


def test_what_only_computing_notices_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "bench", "late"]) == 2
    assert "is for training" in capsys.readouterr().err


@needs_a_lab
@pytest.mark.parametrize("name", [name for name, found in ENVIRONMENTS.items() if found.is_fault])
def test_the_others_go_on_when_one_host_is_gone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    options = ["--hosts", "4", "--iterations", "60", "--warmup", "20", "--bytes", "2M", "--json", str(out)]
    assert main(["lab", "bench", name, *options]) == 0
    assert "longest step" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["aftermath"]["steps_of_others"] > 0
    assert set(found["incident"]["failures"]) <= {"3"}  # a rank that was stopped for long is left behind


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=3, rate="200mbit") as made:
        yield made


def train(lab: Lab, system: str, folder: Path, *, kill_at: int | None = None, steps: int = 30) -> Outcome:
    def at_step(step: int) -> frozenset[int]:
        if step != kill_at:
            return frozenset()
        lab.kill_host(2)
        return frozenset({2})

    plan = TrainingPlan(system, steps, batch=1, evaluate_every=10, held_out_batches=2)
    return run_training(lab, plan, folder / system, at_step=at_step)


@needs_a_lab
def test_both_systems_train_the_same_model_on_a_quiet_network(lab: Lab, tmp_path: Path) -> None:
    # Before its eighth operation a stream has no deadline: every contribution is in, unless a rank stands
    # still for so long that the others go on without it.
    gloo, ours = (train(lab, system, tmp_path, steps=7) for system in ("gloo", "optireduce"))
    for outcome in (gloo, ours):
        assert outcome.failure is None
        assert [step.step for step in outcome.steps] == list(range(7))
        assert len(outcome.held_out) == 1
        assert outcome.replica_difference == 0.0
    if not any(step.missing for step in ours.steps):
        assert ours.final_loss == pytest.approx(gloo.final_loss, abs=1e-3)
    assert len(list((tmp_path / "optireduce").glob("operations-*.jsonl"))) == 3
    assert len(list((tmp_path / "gloo").glob("steps-*.jsonl"))) == 3


@needs_a_lab
def test_a_dead_host_ends_gloos_training_and_not_ours(lab: Lab, tmp_path: Path) -> None:
    gloo = train(lab, "gloo", tmp_path, kill_at=5)
    assert gloo.failure is not None
    assert len(gloo.steps) < 30
    ours = train(lab, "optireduce", tmp_path, kill_at=24)
    assert ours.failure is None, ours.failure
    assert len(ours.steps) == 30
