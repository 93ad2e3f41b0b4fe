"""Every training loop gets the same bits on all ranks: parameters, optimizer state and whatever the loop
derives from gradients. Packets are lost and ranks compute for different times, so contributions come late."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import CONFIG, process_group

import optireduce

OnRanks = Callable[..., list[Any]]
RANKS, WIDTH, STEPS = 3, 48, 12
SMALL = {"bucket_cap_mb": 0.008}  # several buckets
LOSSY = replace(CONFIG, drop=0.01, mtu=1500, timeout_seconds=120.0)


def digest(values: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        found.update(value if isinstance(value, bytes) else repr(value).encode())
    return found.hexdigest()


def parameters_of(model: nn.Module) -> str:
    return digest(itertools.chain(model.parameters(), model.buffers()))


def state_of(optimizer: torch.optim.Optimizer) -> str:
    state = optimizer.state_dict()
    values = [value for _, each in sorted(state["state"].items()) for _, value in sorted(each.items())]
    return digest([*values, [group["lr"] for group in state["param_groups"]]])


def both(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"parameters": parameters_of(model), "optimizer": state_of(optimizer)}


def layers(count: int = 4) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)))


def batches(rank: int, count: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    for number in range(count):
        busy(rank == number % RANKS)
        yield torch.randn(8, WIDTH, generator=generator)


def busy(is_slow: bool, rounds: int = 40) -> None:
    """Computing that takes some milliseconds, so that another rank is the last one in each step."""
    matrix = torch.ones(200, 200)
    for _ in range(rounds if is_slow else 1):
        matrix = matrix @ matrix / 200


def trainer(
    module: nn.Module | None = None, config: optireduce.Config = LOSSY, **options: Any
) -> tuple[Any, torch.optim.Optimizer, optireduce.Session]:
    model = DistributedDataParallel(layers() if module is None else module, **{**SMALL, **options})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    return model, optimizer, optireduce.attach(model, config, optimizer=optimizer)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def leave(session: optireduce.Session) -> None:
    """Close when every rank is through with its steps. A rank that stood still for so long that it was taken
    for dead returns as long as the others are there; when they have left, it fails."""
    dist.barrier()
    session.close()


# --- The loops -------------------------------------------------------------------------------------------


def plain(rank: int, **options: Any) -> dict[str, Any]:
    model, optimizer, session = trainer(**options)
    for batch in batches(rank):
        step(model, optimizer, batch)
    assert session.last_step is not None
    assert session.last_step.step == STEPS - 1
    session.flush(optimizer)
    leave(session)
    return both(model, optimizer)


def static_graph(rank: int) -> dict[str, Any]:
    return plain(rank, static_graph=True)


def bucket_view(rank: int) -> dict[str, Any]:
    return plain(rank, gradient_as_bucket_view=True)


def bfloat16_wire(rank: int) -> dict[str, Any]:
    return plain(rank, config=replace(LOSSY, wire="bf16"))


def int8_wire(rank: int) -> dict[str, Any]:
    return plain(rank, config=replace(LOSSY, wire="int8"))


def batch_norm(rank: int) -> dict[str, Any]:
    """DDP broadcasts its buffers in every forward pass."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
    model, optimizer, session = trainer(module)
    assert session.fixed_membership
    for batch in batches(rank):
        step(model, optimizer, batch)
    leave(session)
    found = both(model, optimizer)
    model(torch.ones(2, WIDTH))  # the broadcast of the last step's buffers
    return found | {"parameters": digest(model.parameters())}


def grad_scaler(rank: int) -> dict[str, Any]:
    """One rank overflows once: all skip that step, and residuals outlive the change of the scale."""
    model, optimizer, session = trainer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    session.keep(scaler)
    scales = []
    for number, batch in enumerate(batches(rank)):
        loss = model(batch).square().mean()
        if (rank, number) == (1, 5):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    assert scales[5] < scales[4]
    assert max(scales) > scales[0]
    leave(session)
    return both(model, optimizer) | {"scales": scales}


def clipping(rank: int) -> dict[str, Any]:
    model, optimizer, session = trainer()
    norms = []
    for batch in batches(rank):
        model(batch).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e-3).item())
        optimizer.step()
        optimizer.zero_grad()
    leave(session)
    return both(model, optimizer) | {"norms": norms}


def accumulation(rank: int) -> dict[str, Any]:
    model, optimizer, session = trainer()
    for number, batch in enumerate(batches(rank, 3 * STEPS)):
        last = number % 3 == 2
        with nullcontext() if last else model.no_sync():
            model(batch).square().mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    assert session.last_step is not None
    assert session.last_step.step == STEPS - 1
    leave(session)
    return both(model, optimizer)


def budget(rank: int) -> dict[str, Any]:
    """Averages are exact and weighted: ranks run different numbers of micro-batches."""
    model, optimizer, session = trainer()
    limited = optireduce.Budget(session)
    data = list(batches(rank, 4))
    for number in range(STEPS):
        for batch in limited.micro_batches(data[: 1 + (rank + number) % 4]):
            with model.no_sync():
                model(batch).square().mean().backward()
        limited.average(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    leave(session)
    return both(model, optimizer)


def join(rank: int) -> dict[str, Any]:
    """Ranks with fewer batches contribute zeros. Their optimizers stop, as torch says: only parameters are
    equal, which the last rank broadcasts."""
    model, optimizer, session = trainer()
    with model.join():
        for batch in batches(rank, STEPS + 2 * rank):
            step(model, optimizer, batch)
    assert session.fixed_membership
    assert session.last_step is not None
    assert session.last_step.step == STEPS + 2 * (RANKS - 1) - 1
    assert session.last_step.excluded == {}  # a rank without batches is not excluded
    leave(session)
    return {"parameters": parameters_of(model)}


class Branches(nn.Module):
    """Which layer a rank uses differs from step to step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, data: torch.Tensor, branch: int) -> torch.Tensor:
        result: torch.Tensor = self.branches[branch](self.stem(data))
        return result


def unused_parameters(rank: int) -> dict[str, Any]:
    model, optimizer, session = trainer(Branches(), find_unused_parameters=True)
    for number, batch in enumerate(batches(rank)):
        model(batch, (rank + number) // 2 % 3).square().mean().backward()
        assert session.last_step is not None
        assert session.last_step.excluded == {}  # exact
        optimizer.step()
        optimizer.zero_grad()
    leave(session)
    return both(model, optimizer)


def several_models(rank: int) -> dict[str, Any]:
    """As in a GAN: two models, each with an optimizer and a session, that use each other."""
    maker, maker_optimizer, maker_session = trainer(layers(2))
    judge, judge_optimizer, judge_session = trainer(layers(3))
    assert maker_session.fixed_membership
    assert judge_session.fixed_membership
    for batch in batches(rank):
        (judge(batch).mean() - judge(maker(batch).detach()).mean()).backward()
        judge_optimizer.step()
        judge_optimizer.zero_grad()
        judge.requires_grad_(False)
        maker(judge.module(batch)).square().mean().backward()
        judge.requires_grad_(True)
        maker_optimizer.step()
        maker_optimizer.zero_grad()
    leave(maker_session)
    leave(judge_session)
    return {
        name + key: value
        for name, pair in (("maker ", (maker, maker_optimizer)), ("judge ", (judge, judge_optimizer)))
        for key, value in both(*pair).items()
    }


class LowRank(nn.Module):
    """A frozen layer and its trained correction."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(WIDTH, rank, bias=False)
        self.up = nn.Linear(rank, WIDTH, bias=False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.frozen(data) + self.up(self.down(data))
        return result


def low_rank(rank: int) -> dict[str, Any]:
    torch.manual_seed(3)
    module = nn.Sequential(*(LowRank(nn.Linear(WIDTH, WIDTH)) for _ in range(4)))
    frozen = digest(layer.frozen.weight for layer in module)
    model, optimizer, session = trainer(module, bucket_cap_mb=0.001)
    for batch in batches(rank):
        step(model, optimizer, batch)
    session.flush(optimizer)
    leave(session)
    assert digest(layer.frozen.weight for layer in module) == frozen
    return both(model, optimizer)


def compiled(rank: int) -> dict[str, Any]:
    model, optimizer, session = trainer(bucket_cap_mb=25)  # torch.compile allows no bucket below 1 MB
    faster = torch.compile(model, backend="aot_eager")
    for batch in batches(rank):
        step(faster, optimizer, batch)
    assert session.last_step is not None
    assert session.last_step.step == STEPS - 1
    leave(session)
    return both(model, optimizer)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: torch.Tensor, fails: bool) -> torch.Tensor:
        context.fails = fails
        return data.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        if context.fails:
            raise ArithmeticError("a bad batch")
        return gradients[0], None


def exception_in_backward(rank: int) -> dict[str, Any]:
    """One rank's backward pass fails before its first gradient; the rank takes another batch."""
    model, optimizer, session = trainer()
    failed = 0
    for number, batch in enumerate(batches(rank)):
        try:
            Fails.apply(model(batch), rank == number % 4).square().mean().backward()
        except ArithmeticError:
            failed += 1
            optimizer.zero_grad()
            model(batch / 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert failed == STEPS // 4
    leave(session)
    return both(model, optimizer)


def evaluation(rank: int) -> dict[str, Any]:
    """Rank 0 alone evaluates, and computes for longer; all ranks exchange a metric now and then."""
    model, optimizer, session = trainer()
    metrics = []
    for number, batch in enumerate(batches(rank)):
        step(model, optimizer, batch)
        if rank == 0 and number % 3 == 0:
            model.eval()
            with torch.no_grad():
                model(batch)
            busy(True, 200)
            model.train()
        if number % 6 == 5:
            metric = torch.tensor([float(rank)])
            session.all_reduce_async(metric).wait()
            metrics.append(metric.item())
    leave(session)
    assert metrics == [1.0, 1.0]
    return both(model, optimizer)


def different_ends(rank: int) -> dict[str, Any]:
    """The last rank begins its last step when the others are through with theirs, or nearly."""
    model, optimizer, session = trainer()
    for number, batch in enumerate(batches(rank)):
        if (rank, number) == (RANKS - 1, STEPS - 1):
            busy(True, 500)
        step(model, optimizer, batch)
    session.close()
    return both(model, optimizer)


def schedule(rank: int) -> dict[str, Any]:
    """A schedule that follows the loss of the gradient's own norm."""
    model, optimizer, session = trainer()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for batch in batches(rank):
        model(batch).square().mean().backward()
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
        optimizer.step()
        scheduler.step(norm)
        optimizer.zero_grad()
    leave(session)
    return both(model, optimizer) | {"rates": scheduler.get_last_lr()}


LOOPS: dict[str, Callable[[int], dict[str, Any]]] = {
    loop.__name__: loop
    for loop in (
        plain,
        static_graph,
        bucket_view,
        bfloat16_wire,
        int8_wire,
        batch_norm,
        grad_scaler,
        clipping,
        accumulation,
        budget,
        join,
        unused_parameters,
        several_models,
        low_rank,
        compiled,
        exception_in_backward,
        evaluation,
        different_ends,
        schedule,
    )
}


def run(rank: int, size: int, directory: str, name: str) -> dict[str, Any]:
    with process_group("gloo", rank, size, directory, timeout=120.0):
        found = LOOPS[name](rank)
        dist.barrier()
        return found


@pytest.mark.parametrize("name", LOOPS)
def test_all_ranks_end_with_the_same_bits(on_ranks: OnRanks, name: str) -> None:
    first, *others = on_ranks(RANKS, run, name)
    assert first
    for other in others:
        assert other == first


def sync_batch_norm(rank: int, size: int, directory: str) -> None:
    with process_group("gloo", rank, size, directory, timeout=120.0):
        module = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(WIDTH))
        with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
            DistributedDataParallel(module)


def test_sync_batch_norm_needs_a_gpu(on_ranks: OnRanks) -> None:
    """torch refuses it on the CPU, with or without attach(): the loop cannot be tested here."""
    on_ranks(2, sync_batch_norm)


# --- Nothing is lost -------------------------------------------------------------------------------------


COUNTED = 40


class Counters(nn.Module):
    """The gradient of every value is the factor, whatever its value."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (1, 10_000, 300, 25_000, 7)
        self.values = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def forward(self, factor: float) -> torch.Tensor:
        return torch.stack([factor * value.sum() for value in self.values]).sum()


def counting(rank: int, size: int, directory: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """The mean over ranks is 6 in every step; all sums are integers, which float32 adds exactly."""
    with process_group("gloo", rank, size, directory, timeout=120.0):
        model = DistributedDataParallel(Counters(), bucket_cap_mb=0.05, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
        session = optireduce.attach(model, replace(LOSSY, drop=0.05))
        views: list[optireduce.MembershipEvent] = []
        session.on_membership(views.append)
        excluded = 0
        for number in range(COUNTED):
            busy(rank == number % RANKS)
            model(float(size * (rank + 1))).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert session.last_step is not None
            excluded += sum(session.last_step.excluded.values())
        session.flush(optimizer)
        found = sorted({value for each in model.parameters() for value in each.unique().tolist()})
        digests = both(model, optimizer)
        assert session.flush() is False
        leave(session)
        dist.barrier()
        return found, digests, excluded, len(views)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_every_gradient_is_applied_exactly_once(on_ranks: OnRanks, options: dict[str, Any]) -> None:
    """Parameters and what flush() adds are the number of steps times the mean, for every value. Only what a
    rank computed while the others took it for dead may be missing."""
    results = on_ranks(RANKS, counting, options)
    changes = sum(views for *_, views in results)
    for found, digests, excluded, _ in results:
        if changes == 0:
            assert found == [6.0 * COUNTED]
            assert excluded == results[0][2]
        assert max(found) <= 6.0 * COUNTED
        assert digests == results[0][1]
