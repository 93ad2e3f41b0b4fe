"""The pieces that make comparisons of training runs fair: data, model, clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from optireduce.trials.training.data import is_held_out, load_text, sample_batch, standard_library_files
from optireduce.trials.training.model import ByteTransformer, ModelConfig
from optireduce.trials.training.plan import TrainingPlan
from optireduce.trials.training.rank import GradientClock, Snapshots
from optireduce.trials.training.run import difference


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


def test_snapshots_are_evaluated_as_they_were() -> None:
    """Later steps must not change what was kept."""
    torch.manual_seed(1)
    config = ModelConfig(layers=1)
    model = ByteTransformer(config)
    text = torch.randint(256, (2_000,), dtype=torch.uint8)
    plan = TrainingPlan("gloo", 1, batch=1, held_out_batches=1)
    snapshots = Snapshots(model)
    snapshots.take(0, 1.0)
    before = model.head.weight.detach().clone()
    with torch.no_grad():
        model.head.weight.mul_(2.0)
    snapshots.take(5, 2.0)
    found = snapshots.evaluate(text, config, plan)
    assert [(step, clock) for step, clock, _, _ in found] == [(0, 1.0), (5, 2.0)]
    assert found[0][3] != found[1][3]
    with torch.no_grad():
        model.head.weight.copy_(before)
    again = Snapshots(model)
    again.take(0, 1.0)
    assert again.evaluate(text, config, plan)[0][3] == found[0][3]


def save(folder: Path, *ranks: list[float]) -> None:
    for rank, values in enumerate(ranks):
        np.save(folder / f"parameters-{rank}.npy", np.float32(values))


def test_ranks_that_ended_apart_are_noticed(tmp_path: Path) -> None:
    save(tmp_path, [4.0, 0.0, -1.0], [4.0, 0.5, -1.25])
    assert difference(tmp_path, 2) == 0.125, "of the largest parameter"


def test_a_rank_that_died_has_no_say(tmp_path: Path) -> None:
    assert difference(tmp_path, 2) is None
    save(tmp_path, [4.0, 0.0])
    assert difference(tmp_path, 2) == 0.0
