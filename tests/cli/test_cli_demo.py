"""The demo end to end, and the pieces that make its comparison fair."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from optireduce.cli import main
from optireduce.cli.demo.data import is_held_out, load_text, sample_batch, standard_library_files
from optireduce.cli.demo.model import ByteTransformer, ModelConfig
from optireduce.cli.demo.plan import RankDone, StepDone
from optireduce.cli.demo.summary import relative_difference, summarize
from optireduce.cli.demo.worker import GradientClock

pytestmark = pytest.mark.timeout(90)

BACKENDS = "gloo,optireduce" if find_spec("optireduce._core") else "gloo"


def test_demo_trains_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "3", "--nproc", "2", "--backends", BACKENDS]) == 0
    out = capsys.readouterr().out
    for word in ("2 ranks", "held-out loss", *BACKENDS.split(",")):
        assert word in out
    assert "different parameters" not in out
    assert ("agree within rounding" in out) == ("," in BACKENDS)


def test_no_file_is_both_trained_on_and_held_out() -> None:
    files = standard_library_files()
    assert len(files) > 100
    assert not any("site-packages" in path.parts for path in files)
    held_out = [path for index, path in enumerate(files) if is_held_out(index)]
    assert 0.05 < len(held_out) / len(files) < 0.2


def test_text_is_the_same_every_time_and_large_enough() -> None:
    first, second = load_text(), load_text()
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert min(map(len, first)) > 100_000


def test_targets_are_the_inputs_one_byte_later() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    tokens, targets = sample_batch(text, 4, 16, torch.Generator().manual_seed(1))
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(tokens + 1, targets)


def test_the_model_sees_only_the_past() -> None:
    """A leak of the next byte would make the loss meaningless."""
    torch.manual_seed(1)
    model = ByteTransformer(ModelConfig(layers=2))
    tokens = torch.randint(256, (1, 32))
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    targets = torch.randint(256, (1, 20))
    with torch.no_grad():
        assert model(tokens[:, :20], targets) == model(changed[:, :20], targets)
        features = [
            model.blocks(model.token(t) + model.position(torch.arange(32))) for t in (tokens, changed)
        ]
    assert torch.allclose(features[0][:, :20], features[1][:, :20], atol=1e-6)
    assert not torch.allclose(features[0][:, 20:], features[1][:, 20:], atol=1e-6)


def test_the_model_has_the_promised_size_and_starts_ignorant() -> None:
    torch.manual_seed(1)
    model = ByteTransformer(ModelConfig())
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(0.84e6, rel=0.02)
    loss = model(torch.randint(256, (2, 64)), torch.randint(256, (2, 64)))
    assert loss.item() == pytest.approx(np.log(256), abs=0.3)


def test_the_gradient_clock_ticks_during_backward() -> None:
    model = torch.nn.Linear(2, 2)
    clock = GradientClock(model)
    assert clock.seconds == 0.0
    model(torch.zeros(1, 2)).sum().backward()
    assert clock.seconds > 0.0


def steps(*seconds: float) -> list[StepDone]:
    return [StepDone(value, value / 4, 1.0) for value in seconds]


def test_warm_up_steps_do_not_count() -> None:
    ranks = [RankDone(1, None, b"\0" * 4), RankDone(0, 2.5, b"\0" * 4)]
    outcome = summarize("x", steps(100, 100, 1, 2, 3), ranks, 10.0)
    assert (outcome.steps, outcome.p50, outcome.p99, outcome.waiting_share) == (5, 2, 3, 0.25)
    assert (outcome.held_out_loss, outcome.replica_difference) == (2.5, 0.0)


def test_ranks_that_ended_apart_are_noticed() -> None:
    ranks = [RankDone(0, 2.5, np.float32([4, 2]).tobytes()), RankDone(1, None, np.float32([4, 1]).tobytes())]
    assert summarize("x", steps(1), ranks, 1.0).replica_difference == 0.25


def test_relative_difference_is_relative_to_the_largest() -> None:
    a = np.array([4.0, 0.0, -1.0], np.float32)
    b = np.array([4.0, 0.5, -1.25], np.float32)
    assert relative_difference(a, b) == 0.125
    assert relative_difference(a, a) == 0.0
