"""The accuracy study: its tasks repeat exactly, and in a small version of it replicas whose excluded
contributions are carried train as well as exact ones and stay equal, which those of the papers' do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from optireduce.accuracy import figures
from optireduce.accuracy.plan import Plan, chosen_losses, chosen_strategies
from optireduce.accuracy.replicas import Replicas
from optireduce.accuracy.stdlib_bytes import HELD_OUT_MODULES, TRAINING_MODULES
from optireduce.accuracy.strategies import CARRY, EXACT, PAPERS, STRATEGIES, Loss, Strategy
from optireduce.accuracy.task import Batch, Task
from optireduce.accuracy.tasks import TASKS
from optireduce.accuracy.training import RANKS, Case, Run, train
from optireduce.accuracy.transport import excluded_share, missing_share
from optireduce.cli.errors import UsageError

SEED = 0
FIVE_PERCENT = [Loss("random", 0.05, "everything"), Loss("tail", 0.05, "everything")]
by_pattern = pytest.mark.parametrize("loss", FIVE_PERCENT, ids=lambda loss: loss.pattern)
with_every_task = pytest.mark.parametrize("name", list(TASKS))


@cache
def task(name: str) -> Task:
    return TASKS[name]()


@cache
def trained(strategy: Strategy, loss: Loss | None = None, steps: int | None = None) -> Run:
    """Digits; tests share runs."""
    digits = task("digits")
    return train(Case(digits, strategy, loss, SEED, steps or digits.steps))


def batches(name: str, seed: int = SEED) -> list[Batch]:
    return [task(name).draw(torch.Generator().manual_seed(seed + rank)) for rank in range(RANKS)]


# --- Training ----------------------------------------------------------------------------------------------


def test_the_exact_run_learns_and_its_replicas_stay_equal() -> None:
    run = trained(EXACT)
    assert run.final_loss < 0.1
    assert run.score is not None
    assert run.score > 0.95
    assert run.equal
    assert run.lost_share == 0


@by_pattern
def test_carried_contributions_train_as_well_as_the_exact_run(loss: Loss) -> None:
    run = trained(CARRY, loss)
    assert 0.5 * loss.share < run.lost_share < 1.3 * loss.share  # or this shows nothing
    assert abs(run.final_loss - trained(EXACT).final_loss) < 0.005


@by_pattern
def test_replicas_with_decisions_are_equal_and_the_papers_are_not(loss: Loss) -> None:
    assert trained(CARRY, loss).equal
    papers = trained(PAPERS, loss)
    assert papers.lost_share > 0.4 * loss.share
    assert not papers.equal
    assert papers.apart[-1] > 1e-4


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_strategy_runs_and_repeats(name: str) -> None:
    loss = None if STRATEGIES[name].lossless else Loss("bursts", 0.10, "everything")
    first = trained(STRATEGIES[name], loss, steps=60)
    assert first == train(Case(task("digits"), STRATEGIES[name], loss, SEED, steps=60))


def test_shares_are_those_of_what_travels() -> None:
    """Two ranks, 100 bytes: each stage carries 100 bytes to all ranks together."""
    holes = [("contribution", 1, 0, 10), ("decision", 1, 50, 5)]
    best_effort = [SimpleNamespace(bytes=100, holes=holes), SimpleNamespace(bytes=100, holes=[])]
    assert missing_share(best_effort) == pytest.approx(0.075)  # type: ignore[arg-type]
    carried = SimpleNamespace(bytes=100, members=[0, 1], excluded=[(0, 10), (1, 20)])
    assert excluded_share(carried) == pytest.approx(0.3)  # type: ignore[arg-type]


# --- Tasks -------------------------------------------------------------------------------------------------


@with_every_task
def test_a_seed_repeats_models_and_batches(name: str) -> None:
    first, second = (Replicas(task(name), RANKS, SEED) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)
    assert torch.equal(first.gradients(batches(name)), second.gradients(batches(name)))
    assert first.loss() == second.loss()
    other = Replicas(task(name), RANKS, SEED + 1)
    assert not torch.equal(first.parameters, other.parameters)


@with_every_task
def test_a_task_loads_the_same_data_again(name: str) -> None:
    again = TASKS[name]()
    for mine, theirs in zip(task(name).evaluation, again.evaluation, strict=True):
        assert torch.equal(mine, theirs)


@with_every_task
def test_replicas_begin_equal_and_learn_from_their_own_batches(name: str) -> None:
    replicas = Replicas(task(name), RANKS, SEED)
    assert replicas.equal()
    assert replicas.apart() < 1e-6
    gradients = replicas.gradients(batches(name))
    assert gradients.shape == replicas.parameters.shape
    assert len({row.numpy().tobytes() for row in gradients}) == RANKS
    replicas.update(gradients, 0.01)
    assert not replicas.equal()
    assert replicas.apart() > 1e-4


@with_every_task
def test_gradients_are_those_of_a_model_on_its_own(name: str) -> None:
    torch.manual_seed(SEED)
    model = task(name).model()
    mine = batches(name)
    loss = model(*mine[3])
    alone = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    together = Replicas(task(name), RANKS, SEED).gradients(mine)[3]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


@with_every_task
def test_a_shard_has_enough_packets_to_lose_some(name: str) -> None:
    elements = Replicas(task(name), 1, SEED).parameters.shape[1]
    assert elements * 4 / RANKS / task(name).payload_bytes > 15


def test_training_never_sees_what_is_held_out() -> None:
    assert not set(TRAINING_MODULES) & set(HELD_OUT_MODULES)
    digits = task("digits")
    assert digits.test is not None
    training, test = (
        {image.numpy().tobytes() for image in data[0]} for data in (digits.evaluation, digits.test)
    )
    assert len(training & test) == 0


# --- Figures -----------------------------------------------------------------------------------------------


def test_differences_are_to_the_exact_run_of_the_same_seed() -> None:
    loss = FIVE_PERCENT[0]
    results = [
        (Case(task("digits"), strategy, lost, seed, 1), Run(losses=[value], apart=[0.0]))
        for strategy, lost, seed, value in [
            (EXACT, None, 0, 1.0),
            (EXACT, None, 1, 3.0),
            (CARRY, loss, 0, 1.1),
            (CARRY, loss, 1, 3.3),
        ]
    ]
    exact, carry = figures.rows(results)
    assert exact.difference == figures.Difference(0.0, 0.0)
    assert carry.final_loss == pytest.approx(2.2)
    assert carry.difference is not None
    assert carry.difference.mean == pytest.approx(0.2)
    assert carry.difference.error == pytest.approx(0.1)


def test_exact_runs_come_first_and_once() -> None:
    plan = Plan([task("digits")], list(STRATEGIES.values()), FIVE_PERCENT, seeds=2, steps=None)
    cases = list(plan.cases())
    assert [case.strategy for case in cases[:2]] == [EXACT, EXACT]
    assert sum(case.strategy == EXACT for case in cases) == 2
    assert len(cases) == 2 + 2 * len(FIVE_PERCENT) * (len(STRATEGIES) - 1)


def test_every_choice_goes_with_every_other() -> None:
    chosen = chosen_losses("tail,random", "0.01,0.05", "nothing,everything")
    assert len(set(chosen)) == 8
    assert chosen[0] == Loss("tail", 0.01, "nothing")


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda: chosen_strategies("carry,theirs"), "--strategies: 'theirs'"),
        (lambda: chosen_losses("head", "0.1"), "--patterns: 'head'"),
        (lambda: chosen_losses("tail", "5"), "--loss: '5'"),
        (lambda: chosen_losses("tail", "0.05", "all"), "--hopeless: 'all'"),
    ],
)
def test_what_cannot_be_chosen_is_named(choose: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose()
