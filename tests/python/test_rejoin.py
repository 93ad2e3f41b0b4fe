"""What a session does while its rank is left behind, and where it gives and takes snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine, fake_world
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from optireduce import Config, LeftBehind, MismatchError, attach
from optireduce.safeguard import Safeguard
from optireduce.snapshot.donor import Wanted
from optireduce.snapshot.returner import Returner, Snapshot
from optireduce.snapshot.state import Image, TrainingState

LEFT_BEHIND = {"error_code": 5, "error": "the others went on", "ranks": [0]}
CONFIG = Config(interface="lo")


class Loop:
    """A training loop in a group of one, over a fake engine."""

    def __init__(
        self,
        config: Config = CONFIG,
        with_optimizer: bool = True,
        follows: bool = True,
        keeps: bool = True,
        trains_all: bool = True,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Linear(4, 4), **options)
        trained = self.model.parameters() if trains_all else [self.model.module.weight]
        self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.1)
        self.session = attach(self.model, config, optimizer=self.optimizer if with_optimizer else None)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        if keeps:
            self.session.keep(self.scheduler)
        if follows:
            assert self.session.step == 0

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.ones(1, 4)).sum()
        return loss

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.forward().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def weights(self) -> list[list[float]]:
        found: list[list[float]] = self.model.module.weight.tolist()
        return found


@contextmanager
def loop(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Loop, FakeEngine]]:
    with fake_world(monkeypatch) as engine:
        made = Loop(**options)
        with made.session:
            yield made, engine


class Others:
    """Each return takes the next of the ``snapshots``, and notes whether it asked for a pause."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.pauses: list[bool] = []

    def fetch(self, returner: Returner) -> Snapshot:
        self.pauses.append(returner._pause)
        return self.snapshots[len(self.pauses) - 1]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    made = Others()
    monkeypatch.setattr(Returner, "fetch", lambda returner: made.fetch(returner))
    return made


def another_rank(steps: int, step: int) -> Snapshot:
    """Of a replica that has trained on."""
    torch.manual_seed(1)
    module = nn.Linear(4, 4)
    wrapped = nn.Module()
    wrapped.module = module
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(steps):
        module(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    state = TrainingState(wrapped, optimizer, [Safeguard(1.0, 10), scheduler])
    return Snapshot(step, 100 + step, 99, state.shared(), state.buffers())


def test_a_rank_that_is_left_behind_discards_until_a_snapshot_brings_it_back(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        made.step(3)
        before = made.weights()
        engine.outcome = LEFT_BEHIND
        made.step()
        assert made.weights() == before  # neither gradient nor weight decay nor momentum
        assert made.session.error is None
        assert not made.session.should_step()
        assert made.session.stats()["discarded_steps"] == 1
        others.snapshots.append(another_rank(7, step=40))
        engine.outcome = {}
        loss = made.forward()  # takes it over
        assert engine.restored == [(140, 99, 40)]
        assert made.session.step == 40
        assert made.scheduler.last_epoch == 7
        assert made.weights() == others.snapshots[0].shared.value()["parameters"][0][1].tolist()
        loss.backward()
        assert engine.calls[-1].step == 40
        made.optimizer.step()
        assert made.session.step == 41
        assert made.session.stats()["snapshots_applied"] == 1
        assert made.session.should_step()


def test_nothing_is_taken_over_before_the_optimizer_has_stepped(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    """Gradients would be accumulated over two states."""
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        engine.outcome = LEFT_BEHIND
        made.forward().backward()
        made.forward().backward()
        with torch.no_grad():
            made.forward()
        assert engine.restored == []
        made.optimizer.step()
        with torch.no_grad():
            made.forward()
        assert engine.restored == []
        others.snapshots.append(another_rank(7, step=40))
        made.forward()
        assert [step for *_, step in engine.restored] == [40]


def test_a_grad_scaler_sees_no_infinities_in_a_discarded_step(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    """It would skip the optimizer's step, after which a snapshot can be taken over."""
    with loop(monkeypatch) as (made, engine):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        made.step(2)
        engine.failing = {len(engine.calls): LEFT_BEHIND}  # its buffer is full of NaN
        scaler.scale(made.forward()).backward()
        scaler.step(made.optimizer)
        scaler.update()
        assert scaler.get_scale() == 8.0
        others.snapshots.append(another_rank(7, step=40))
        made.forward()
        assert [step for *_, step in engine.restored] == [40]


def test_a_loop_in_which_no_snapshot_can_be_taken_over_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    """``model.forward()`` runs no hooks: it would discard steps for ever."""
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        engine.outcome = LEFT_BEHIND

        def steps() -> None:
            for _ in range(200):
                made.model.forward(torch.ones(1, 4)).sum().backward()
                made.optimizer.step()

        with pytest.raises(LeftBehind, match=r"Call the model, not model.forward\(\)"):
            steps()
        assert others.pauses == []


def test_a_second_snapshot_asks_for_a_pause_and_the_last_is_an_error(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        engine.outcome = LEFT_BEHIND
        others.snapshots += [another_rank(3, step) for step in range(10, 20)]
        made.step(7)
        assert others.pauses == [False] + [True] * 5
        with pytest.raises(LeftBehind, match=r"after each of 6 snapshots. Raise log_bytes"):
            made.step()


def test_a_step_that_succeeds_forgets_earlier_attempts(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        others.snapshots += [another_rank(3, step) for step in range(10, 20)]
        for _ in range(3):
            engine.outcome = {}
            made.step(2)
            engine.outcome = LEFT_BEHIND
            made.step(1)
        engine.outcome = {}
        made.step()
        assert others.pauses == [False] * 3


def test_a_rank_that_only_replays_has_not_returned(monkeypatch: pytest.MonkeyPatch, others: Others) -> None:
    """It gets a step or two out of the log with each snapshot, and would never ask for a pause."""
    with loop(monkeypatch) as (made, engine):
        others.snapshots += [another_rank(3, step) for step in range(10, 20)]
        made.step()
        for _ in range(3):
            engine.outcome = LEFT_BEHIND
            made.step()
            engine.outcome = {"members": [1, 2]}
            made.step()
        assert others.pauses == [False, True, True]


def test_a_rank_that_is_far_behind_takes_a_snapshot_instead_of_replaying(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        engine.steps_behind = 8  # max_lag is 2
        made.step(3)
        assert (engine.gave_up, others.pauses) == (0, [])
        engine.steps_behind = None
        made.step()
        engine.steps_behind = 9
        others.snapshots.append(another_rank(7, step=40))
        made.forward()
        assert engine.gave_up == 1
        assert engine.restored == [(140, 99, 40)]
        assert made.session.stats()["discarded_steps"] == 0


def test_a_replay_that_does_not_come_nearer_ends_with_a_snapshot_and_a_pause(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        others.snapshots += [another_rank(7, step) for step in (40, 80)]
        made.step(1)
        engine.outcome = {"members": [1, 2]}
        engine.steps_behind = 400
        made.step(1)
        assert others.pauses == [False]
        for distance in (100, 49, 24):  # far, but nearer each time
            engine.steps_behind = distance
            made.step(10)
        assert others.pauses == [False]
        engine.steps_behind = 13
        made.step(11)
        assert others.pauses == [False, True]


def test_a_rank_that_is_a_member_meanwhile_takes_no_snapshot(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        engine.steps_behind = 100
        monkeypatch.setattr(engine, "give_up_replay", lambda: False)
        made.step(2)
        assert others.pauses == []


def test_a_rank_that_replays_gives_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(monkeypatch, keeps=False) as (made, engine):
        made.step(2)
        engine.steps_behind = 100
        made.step(1)
        donor = made.session._rejoin._donor
        assert donor.status()["standing"] == "left behind"
        assert engine.gave_up == 0  # no snapshot is possible: it replays
        engine.steps_behind = None
        made.step(1)
        assert donor.status()["standing"] == "training"


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"with_optimizer": False}, r"Give attach\(\) the optimizer on every rank"),
        ({"trains_all": False}, r"one that trains all parameters"),
        ({"follows": False}, r"session\.batches\(loader\) or session\.step"),
        ({"keeps": False}, r"Give session\.keep\(\) the learning rate scheduler"),
        ({"find_unused_parameters": True}, r"collectives outside optireduce: find_unused_parameters"),
        ({"config": Config(interface="lo", delivery="best-effort")}, r'delivery = "carry"'),
    ],
)
def test_without_a_way_back_the_error_says_what_would_make_one(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], advice: str
) -> None:
    with loop(monkeypatch, **options) as (made, engine):
        made.step(2)
        engine.outcome = LEFT_BEHIND
        with pytest.raises(RuntimeError, match=f"the others went on.*{advice}"):
            made.step()
        assert isinstance(made.session.error, LeftBehind)


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(monkeypatch) as (made, engine):
        engine.outcome = {"error_code": 4, "error": "too few", "ranks": [1]}
        with pytest.raises(RuntimeError, match="too few"):
            made.step()


def test_a_snapshot_that_does_not_fit_is_an_error_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    with loop(monkeypatch) as (made, engine):
        made.step(2)
        before = made.weights()
        engine.outcome = LEFT_BEHIND
        made.step()
        found = another_rank(3, 10)
        wrong = found.shared.value()
        wrong["parameters"][0][1] = torch.zeros(5, 4)
        others.snapshots.append(Snapshot(10, 1, 2, Image.of(wrong, "it"), found.buffers))
        with pytest.raises(MismatchError, match=r"'module.weight' is float32 \[4, 4\] here"):
            made.step()
        assert (made.weights(), engine.restored, made.session.step) == (before, [], 3)


def test_a_donor_captures_between_the_optimizer_and_the_next_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with loop(monkeypatch) as (made, _):
        made.step(2)
        donor = made.session._rejoin._donor
        assert donor.ask(1, Wanted(4, 0, 1, False))["standing"] == "training"
        made.step(2)
        made.optimizer.zero_grad()
        assert donor._captures == {}
        with torch.no_grad():
            made.forward()  # an evaluation
        assert donor._captures == {}
        made.forward()
        answer = donor.ready(1)["capture"]
        assert (answer["step"], answer["completed"], answer["operations"]) == (4, 4, 4711)
        state = TrainingState(made.model, made.optimizer, [made.session._safeguard, made.scheduler])
        assert answer["shared"]["digest"] == state.shared().digest()


def test_the_group_pauses_until_the_rank_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(interface="lo", rejoin_pause_seconds=60.0)
    with loop(monkeypatch, config=config) as (made, engine):
        made.step(2)
        made.session._rejoin._donor.ask(1, Wanted(3, 0, 1, True))
        made.step(1)
        engine.new_events = [("removed", 1, 2, 2), ("returned", 2, 3, 3), ("returned", 1, 4, 3)]
        made.forward()  # or it would take a minute


def test_a_pause_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(interface="lo", rejoin_pause_seconds=0.01)
    with loop(monkeypatch, config=config) as (made, _):
        made.step(2)
        made.session._rejoin._donor.ask(1, Wanted(3, 0, 1, True))
        made.step(2)
        assert made.session._rejoin._donor.ready(1)["capture"] is not None


def batches_of(monkeypatch: pytest.MonkeyPatch, others: Others, each: int) -> list[list[int]]:
    """What a loop over epochs of 12 batches sees that is left behind in its fourth step and taken to step 30
    with ``each`` batches for a step."""
    seen: list[list[int]] = []
    with loop(monkeypatch) as (made, engine):
        others.snapshots.append(another_rank(3, step=30))
        for _ in range(5 * each):
            seen.append([])
            for number in made.session.batches(range(12)):
                seen[-1].append(number)
                engine.outcome = LEFT_BEHIND if made.session.step == 3 else {}
                if (number + 1) % each:
                    with made.model.no_sync():
                        made.forward().backward()
                    continue
                made.step()
    return seen


def test_batches_of_missed_steps_are_skipped(monkeypatch: pytest.MonkeyPatch, others: Others) -> None:
    """Steps 0 to 3 have batches 0 to 3; the fifth takes over step 30, batch 6 of epoch 2 elsewhere."""
    assert batches_of(monkeypatch, others, 1) == [
        [0, 1, 2, 3, 4],
        [],
        [7, 8, 9, 10, 11],
        list(range(12)),
        list(range(12)),
    ]


def test_batches_are_skipped_by_as_many_as_a_step_has(
    monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    """Step 30 has batches 60 and 61; of these the first was drawn before the jump."""
    found = batches_of(monkeypatch, others, 2)
    assert found[:7] == [list(range(9)), [], [], [], [], [1, *range(2, 12)], list(range(12))]


def test_epochs_that_were_missed_are_not_loaded(monkeypatch: pytest.MonkeyPatch, others: Others) -> None:
    loaded: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Iterator[int]:
            for number in range(12):
                loaded.append(number)
                yield number

    with loop(monkeypatch) as (made, engine):
        others.snapshots.append(another_rank(3, step=40))
        for _ in range(4):
            loaded.append(-1)
            for _ in made.session.batches(Loader()):
                engine.outcome = LEFT_BEHIND if made.session.step == 3 else {}
                made.step()
    assert loaded == [-1, 0, 1, 2, 3, 4, -1, -1, -1, *range(12)]


@pytest.mark.parametrize("thing", [3, "scheduler", nn.Linear, object()])
def test_keep_names_what_it_cannot_keep(monkeypatch: pytest.MonkeyPatch, thing: Any) -> None:
    with loop(monkeypatch) as (made, _), pytest.raises(TypeError, match=r"keep\(\) got a|missing 1 required"):
        made.session.keep(made.scheduler, thing)


def test_keep_refuses_a_state_that_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"callback": print}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    with (
        loop(monkeypatch) as (made, _),
        pytest.raises(TypeError, match=r"state_dict\(\) of a Odd\['callback'\] is a builtin"),
    ):
        made.session.keep(Odd())
