"""A slow rank must stop when its budget is spent. The mean must be the mean over all samples, however unequal
the shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from fake_engine import fake_engine
from ranks import group_results, results

from optireduce import Budget, Communicator, ComputePolicy, Config, ConfigError, Report, gradient_buckets
from optireduce.process_group import OptiReduceGroup

PATIENCE_SECONDS = 100.0


def limit_after(*steps: float, **settings: Any) -> float:
    policy = ComputePolicy(**settings)
    for seconds in steps:
        policy.observe([seconds])
    return policy.limit_seconds


def test_warm_up_has_no_limit() -> None:
    assert limit_after(1.0, 1.0, free_steps=3) == math.inf
    assert limit_after(1.0, 1.0, 1.0, free_steps=3) == 1.25


def test_margin_is_a_share_but_never_too_little_to_measure() -> None:
    assert limit_after(*[2.0] * 5, margin=0.5) == 3.0
    assert limit_after(*[0.001] * 5, least_margin_seconds=0.005) == pytest.approx(0.006)


def test_one_slow_step_does_not_move_it() -> None:
    assert limit_after(*[1.0] * 10, 50.0) == limit_after(*[1.0] * 10)


@pytest.mark.parametrize("lasting", [4.0, 0.25])
def test_a_lasting_change_is_followed(lasting: float) -> None:
    assert limit_after(*[1.0] * 20, *[lasting] * 9) == 1.25
    assert limit_after(*[1.0] * 20, *[lasting] * 11) == 1.25 * lasting


def test_the_median_rank_sets_the_pace() -> None:
    policy = ComputePolicy(free_steps=1)
    policy.observe([1.0, 1.5, 90.0, 80.0, math.nan, 0.0])
    assert policy.limit_seconds == 1.5 * 1.25


def test_a_step_that_told_nothing_counts_for_nothing() -> None:
    policy = ComputePolicy(free_steps=1)
    policy.observe([0.0, math.inf])
    assert policy.limit_seconds == math.inf


@pytest.mark.parametrize(
    ("setting", "value"),
    [("margin", 0.0), ("least_margin_seconds", -1.0), ("free_steps", 0), ("window_steps", 4)],
)
def test_bad_settings_are_named(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{setting} = {value!r}"):
        ComputePolicy(**{setting: value})


class Group:
    """All-reduces of ranks that are threads: exact weighted means, in double precision."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: list[dict[int, tuple[torch.Tensor, int]]] = []
        self.barrier = threading.Barrier(size)
        self.lock = threading.Lock()

    def mean(self, operation: int) -> torch.Tensor:
        buffers, weights = zip(*(self.given[operation][rank] for rank in range(self.size)), strict=True)
        total = sum(buffer for buffer, weight in zip(buffers, weights, strict=True) if weight)
        return total / sum(weights) if sum(weights) else torch.zeros_like(buffers[0])


class Member:
    """One rank of a Group."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size
        self.operations = 0

    def all_reduce_async(
        self, buffer: torch.Tensor, op: str = "mean", *, weight: int | None = None, **_: Any
    ) -> Any:
        assert op == "mean"
        assert weight is not None
        number, self.operations = self.operations, self.operations + 1
        with self.group.lock:
            if number == len(self.group.given):
                self.group.given.append({})
            self.group.given[number][self.rank] = (buffer.double(), weight)
        return Pending(self, number, buffer)


class Pending:
    def __init__(self, member: Member, number: int, buffer: torch.Tensor) -> None:
        self.member, self.number, self.buffer = member, number, buffer

    def wait(self) -> Report:
        self.member.group.barrier.wait(PATIENCE_SECONDS)
        self.buffer.copy_(self.member.group.mean(self.number))
        return Report(self.number, self.buffer.nbytes, 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def alone(**settings: Any) -> tuple[Budget, Member, Clock]:
    member, clock = Member(Group(1), 0), Clock()
    settings.setdefault("policy", ComputePolicy(free_steps=1, window_steps=1))
    return Budget(member, clock=clock, **settings), member, clock


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def run_step(budget: Budget, clock: Clock, batch_seconds: float, batches: int = 8) -> None:
    weights = parameter(1.0)
    for _ in budget.micro_batches(range(batches)):
        clock.now += batch_seconds
        (weights * 1.0).sum().backward()
    budget.average([weights])


def done(budget: Budget) -> int:
    assert budget.last_step is not None
    return budget.last_step.micro_batches


def test_a_slow_step_ends_before_the_micro_batch_that_does_not_fit() -> None:
    budget, _, clock = alone(policy=ComputePolicy(free_steps=1))
    run_step(budget, clock, 1.0)
    assert budget.limit_seconds == 10.0  # 8 s and a quarter
    run_step(budget, clock, 1.25)
    assert done(budget) == 8  # just fits
    run_step(budget, clock, 3.0)
    assert budget.last_step is not None
    assert (done(budget), budget.last_step.seconds, budget.last_step.stopped_early) == (3, 9.0, True)


def test_what_has_begun_is_finished() -> None:
    budget, _, clock = alone()
    run_step(budget, clock, 1.0)
    run_step(budget, clock, 500.0)
    assert done(budget) == 1


def test_a_group_that_has_become_slower_as_a_whole_gets_its_full_sets_back() -> None:
    """A pace taken from steps cut short would never grow again."""
    budget, _, clock = alone(policy=ComputePolicy(free_steps=1, window_steps=3))
    run_step(budget, clock, 1.0)
    for _ in range(3):
        run_step(budget, clock, 4.0)
    assert budget.limit_seconds == 40.0
    run_step(budget, clock, 4.0)
    assert done(budget) == 8


def test_data_without_a_length_needs_the_number_of_micro_batches() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    budget, _, _ = alone()
    with pytest.raises(TypeError, match=r"generator without len\(\).*micro_batches"):
        budget.micro_batches(endless())
    source = endless()
    budget, _, _ = alone(micro_batches=3)
    assert len(list(budget.micro_batches(source))) == 3
    assert len(list(budget.micro_batches([1, 2]))) == 2


def test_no_batch_is_taken_that_is_not_run() -> None:
    budget, _, clock = alone(micro_batches=4)
    run_step(budget, clock, 1.0)
    source = iter(range(100))
    weights = parameter(1.0)
    for _ in budget.micro_batches(source):
        clock.now += 2.0
        weights.sum().backward()
    budget.average([weights])
    assert (done(budget), next(source)) == (2, 2)


def test_a_full_set_ends_with_the_data() -> None:
    budget, _, _ = alone(micro_batches=8)
    weights = parameter(1.0)
    list(budget.micro_batches(iter([1, 2])))
    budget.average([weights])
    assert budget.last_step is not None
    assert not budget.last_step.stopped_early


def test_average_needs_a_step_each_time() -> None:
    budget, _, _ = alone()
    with pytest.raises(RuntimeError, match="micro_batches"):
        budget.average([parameter(1.0)])
    list(budget.micro_batches([1]))
    budget.average([parameter(1.0)])
    with pytest.raises(RuntimeError, match="micro_batches"):
        budget.average([parameter(1.0)])


def test_more_samples_than_can_be_counted_are_refused() -> None:
    budget, member, _ = alone(samples=lambda batch: 40_000)
    list(budget.micro_batches([1, 2]))
    with pytest.raises(ValueError, match=r"80000 samples.*65535"):
        budget.average([parameter(1.0)])
    assert not member.operations


def test_steps_are_numbered_and_told_as_of_any_exchange() -> None:
    budget, _, _ = alone()
    reports = []
    for _ in range(2):
        list(budget.micro_batches([1]))
        reports.append(budget.average([parameter(1.0, 2.0)]))
    assert [(report.step, report.buckets) for report in reports] == [(0, 1), (1, 1)]


# --- The mean --------------------------------------------------------------------------------------------

Body = Callable[[Budget, Member, Clock], Any]


def on_group(size: int, body: Body, **settings: Any) -> list[Any]:
    group = Group(size)

    def run(rank: int) -> Any:
        member, clock = Member(group, rank), Clock()
        return body(Budget(member, clock=clock, **settings), member, clock)

    return results(size, run)


@pytest.mark.parametrize("shares", [(3, 1, 4), (0, 5, 2), (7, 0, 0)])
def test_unequal_shares_give_the_mean_over_all_samples(shares: tuple[int, ...]) -> None:
    """Small integers: every sum is exact, so anything but the mean shows."""
    data = [[float(10 * rank + index) for index in range(share)] for rank, share in enumerate(shares)]
    samples = [sample for rank in data for sample in rank]

    def body(budget: Budget, member: Member, clock: Clock) -> list[float]:
        weights = parameter(0.0, 0.0)
        for sample in budget.micro_batches(data[member.rank]):
            (weights * torch.tensor([1.0, sample])).sum().backward()
        budget.average([weights])
        assert weights.grad is not None
        return list(weights.grad.tolist())

    expected = torch.tensor([len(samples), sum(samples)]) / len(samples)
    assert on_group(3, body) == [expected.tolist()] * 3


@pytest.mark.parametrize("counted", [True, False])
def test_micro_batches_of_several_samples_weigh_what_they_hold(counted: bool) -> None:
    data = [[[1.0, 2.0, 3.0], [4.0]], [[10.0], []]]

    def body(budget: Budget, member: Member, clock: Clock) -> tuple[float, int]:
        weights = parameter(0.0)
        for batch in budget.micro_batches(data[member.rank]):
            (weights * torch.tensor(batch)).sum().backward()  # the loss is a sum over samples
            if counted:
                budget.count(len(batch))
        budget.average([weights])
        assert weights.grad is not None
        assert budget.last_step is not None
        return weights.grad.item(), budget.last_step.samples

    found = on_group(2, body, **({} if counted else {"samples": len}))
    assert found == [(4.0, 4), (4.0, 1)]


def test_break_counts_the_batch_it_is_in() -> None:
    budget, _, _ = alone()
    for _ in budget.micro_batches([1, 2, 3]):
        break
    budget.average([parameter(1.0)])
    assert budget.last_step is not None
    assert budget.last_step.samples == 1


def test_the_straggler_is_cut_and_the_others_are_not() -> None:
    """Three ranks, one four times slower: it learns the others' pace from the notes."""
    group = Group(3)

    def run(rank: int) -> list[int]:
        clock, found = Clock(), []
        budget = Budget(Member(group, rank), clock=clock, policy=ComputePolicy(free_steps=2))
        for _ in range(4):
            run_step(budget, clock, 4.0 if rank == 1 else 1.0)
            found.append(done(budget))
        return found

    assert results(3, run) == [[8, 8, 8, 8], [8, 8, 2, 2], [8, 8, 8, 8]]


def test_a_parameter_is_used_on_all_ranks_or_on_none() -> None:
    """Optimizers skip parameters without a gradient; ranks that differ in this would drift apart."""

    def body(budget: Budget, member: Member, clock: Clock) -> list[Any]:
        shared, only_first, zero_on_first, unused = (parameter(1.0) for _ in range(4))
        frozen = torch.ones(1)
        for _ in budget.micro_batches([1]):
            loss = shared * 2.0
            if member.rank == 0:
                loss = loss + only_first * 6.0 + zero_on_first * 0.0
            loss.sum().backward()
        everything = [shared, only_first, zero_on_first, unused, frozen]
        budget.average(everything)
        return [None if each.grad is None else each.grad.item() for each in everything]

    assert on_group(2, body) == [[2.0, 3.0, 0.0, None, None]] * 2


def test_the_gradient_of_an_earlier_step_is_not_given_again() -> None:
    def body(budget: Budget, member: Member, clock: Clock) -> list[Any]:
        weights, found = parameter(1.0), []
        for step in range(2):
            for _ in budget.micro_batches([1]):
                if step == 0 or member.rank == 0:
                    (weights * 8.0).sum().backward()
            budget.average([weights])
            found.append(weights.grad.item() if weights.grad is not None else None)
            weights.grad = None
        return found

    assert on_group(2, body) == [[8.0, 4.0]] * 2


def test_other_dtypes_and_layouts_come_back_as_they_were() -> None:
    def body(budget: Budget, member: Member, clock: Clock) -> list[Any]:
        half = parameter(1.0, 2.0, dtype=torch.bfloat16)
        double = parameter(1.0, dtype=torch.float64)
        image = torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last).requires_grad_()
        values = torch.arange(8.0).view(1, 2, 2, 2)
        for _ in budget.micro_batches([1]):
            (half.sum() * 3.0 + double.sum() / 3.0 + (image * values).sum()).backward()
        budget.average([half, double, image])
        assert half.grad is not None
        assert half.grad.dtype == torch.bfloat16
        assert image.grad is not None
        assert torch.equal(image.grad, values)
        return [half.grad.tolist(), double.grad.item() if double.grad is not None else None]

    assert on_group(2, body) == [[[3.0, 3.0], 1.0 / 3.0]] * 2


def test_long_gradients_go_in_even_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short rest would cost an operation of its own."""
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 4_000)

    def body(budget: Budget, member: Member, clock: Clock) -> list[int]:
        parts = [parameter(*range(700)), parameter(*range(300, 1_000))]
        for _ in range(2):
            for _ in budget.micro_batches([1, 2]):
                for part in parts:
                    (part * part.detach() * (1 + member.rank)).sum().backward()
            budget.average(parts)
            for part in parts:
                assert part.grad is not None
                assert torch.equal(part.grad, 1.5 * part.detach())
                part.grad = None
        return [int(member.group.given[index][0][0].numel()) for index in range(2)]

    elements = 2 * 2 + 2 + 1_400
    assert on_group(2, body) == [[elements // 2, elements // 2]] * 2


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ([], ValueError, "empty"),
        ([torch.zeros(1, dtype=torch.complex64, requires_grad=True)], TypeError, "parameter 0 .*complex64"),
    ],
)
def test_what_cannot_be_averaged_is_named(parameters: Any, error: type[Exception], text: str) -> None:
    budget, member, _ = alone()
    list(budget.micro_batches([1]))
    with pytest.raises(error, match=text):
        budget.average(parameters)
    assert not member.operations


def test_sparse_gradients_are_refused() -> None:
    budget, member, _ = alone()
    table = torch.nn.Embedding(4, 2, sparse=True)
    for _ in budget.micro_batches([1]):
        table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="parameter 0 has a sparse gradient"):
        budget.average(table.parameters())
    assert not member.operations


def test_buffers_of_a_step_that_failed_are_not_used_again() -> None:
    """Its operations may still be in flight, and write to them."""
    budget, member, _ = alone()
    weights = parameter(1.0)
    given: list[torch.Tensor] = []
    healthy = member.all_reduce_async

    def failing(buffer: torch.Tensor, op: str = "mean", *, weight: int | None = None, **_: Any) -> Any:
        given.append(buffer)  # held, as an operation in flight holds it
        if len(given) == 1:
            raise TimeoutError
        return healthy(buffer, op, weight=weight)

    member.all_reduce_async = failing  # type: ignore[method-assign]
    list(budget.micro_batches([1]))
    with pytest.raises(TimeoutError):
        budget.average([weights])
    budget.average([weights])
    list(budget.micro_batches([1]))
    budget.average([weights])
    first, second, third = (buffer.data_ptr() for buffer in given)
    assert first != second == third


@pytest.mark.parametrize("elements", [2, 40_000])
def test_the_mean_over_real_sockets(elements: int) -> None:
    """One rank gives nothing."""

    def body(communicator: Communicator) -> None:
        budget, weights = Budget(communicator), torch.zeros(elements, requires_grad=True)
        for _ in range(2):
            for sample in budget.micro_batches([[2.0, 3.0, 4.0], [], [11.0]][communicator.rank]):
                (weights * sample).sum().backward()
            assert budget.average([weights]).excluded == {}
            assert weights.grad is not None
            assert set(weights.grad.tolist()) == {5.0}
            weights.grad = None

    group_results(3, body)


def test_a_process_group_tells_its_rank_by_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(monkeypatch)
    store = torch.distributed.HashStore()
    group = OptiReduceGroup(store, 0, 1, timedelta(seconds=20), Config(interface="lo"))
    budget = Budget(group)
    list(budget.micro_batches([1, 2]))
    budget.average([parameter(1.0)])
    group.shutdown()
    assert [call.weight for call in engine.calls] == [2]
