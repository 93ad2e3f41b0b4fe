"""The backend must be a drop-in: float SUM and AVG from the engine, all else as Gloo does it, and no hang
anywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch_ranks import process_group

import optireduce

OnRanks = Callable[..., list[Any]]


def operations(group: Any = None) -> int:
    return int(optireduce.stats(group)["operations"])


def all_dtypes(rank: int, size: int, directory: str) -> list[Any]:
    found = []
    with process_group("optireduce", rank, size, directory):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                for length in (1, 5, 10_007):
                    generator = torch.Generator().manual_seed(length + rank)
                    tensor = torch.randn(length, generator=generator).to(dtype)
                    dist.all_reduce(tensor, op)
                    inputs = [
                        torch.randn(length, generator=torch.Generator().manual_seed(length + r)).to(dtype)
                        for r in range(size)
                    ]
                    wide = torch.float64 if dtype is torch.float64 else torch.float32
                    expected = inputs[0].to(wide)
                    for other in inputs[1:]:
                        expected = expected + other.to(wide)
                    if op == dist.ReduceOp.AVG:
                        expected = expected / size
                    assert torch.equal(tensor, expected.to(dtype)), (dtype, op, length)
                    found.append(tensor.view(torch.uint8).tolist())
        assert operations() == 4 * 2 * 3
    return found


def test_every_dtype_bitwise(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, all_dtypes)
    assert first == second


def shapes_and_calls(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory):
        empty = torch.empty(0)
        dist.all_reduce(empty)
        assert dist.all_reduce(empty, async_op=True).get_future().wait()[0] is not None

        whole = torch.zeros(6, 8)
        part = whole[::2, 1::3] if rank else whole[::2, 1::3].clone()  # ranks may differ in contiguity
        part.fill_(rank + 1)
        dist.all_reduce(part)
        assert torch.equal(part, torch.full((3, 3), 3.0))
        if rank:
            assert whole.sum() == 27.0

        grad = torch.ones(4, 3, requires_grad=True)
        dist.all_reduce(grad.t() if rank == 0 else grad)
        assert torch.equal(grad.detach(), torch.full((4, 3), 2.0))

        tensors = [torch.full((n,), float(rank + 1)) for n in (1, 70_000, 3, 300_000)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works[::2]]
        for work in reversed(works):
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
        assert all(torch.equal(tensor, torch.full_like(tensor, 3.0)) for tensor in tensors)
        doubled = futures[1].then(lambda done: done.value()[0] * 2).wait()
        assert torch.equal(doubled, torch.full((3,), 6.0))
        assert works[0].result()[0] is tensors[0]


def test_shapes_async_and_futures(on_ranks: OnRanks) -> None:
    on_ranks(2, shapes_and_calls)


def collectives(rank: int, size: int, directory: str, backend: str) -> list[Any]:
    """What every other collective returns; the same list from Gloo is the reference."""
    out: list[Any] = []

    def keep(*tensors: torch.Tensor) -> None:
        out.extend(tensor.tolist() for tensor in tensors)

    def mine(n: int = 4) -> torch.Tensor:
        return torch.arange(float(n)) + 10 * rank

    with process_group(backend, rank, size, directory):
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            tensor = mine()
            dist.all_reduce(tensor, op)
            keep(tensor)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.BAND):
            tensor = torch.arange(4) + rank
            dist.all_reduce(tensor, op)
            keep(tensor)
        sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([1.0, 2.0]), (5,))
        dist.all_reduce(sparse)
        keep(sparse.to_dense())
        tensor = mine()
        dist.broadcast(tensor, 1)
        keep(tensor)
        tensor = mine()
        dist.reduce(tensor, 0)
        keep(tensor if rank == 0 else torch.zeros(1))
        parts = [torch.zeros(4) for _ in range(size)]
        dist.all_gather(parts, mine())
        keep(*parts)
        joined = torch.zeros(4 * size)
        dist.all_gather_into_tensor(joined, mine())
        keep(joined)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        out.append(objects)
        gathered = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
        dist.gather(mine(), gathered, 0)
        keep(*(gathered or []))
        tensor = torch.zeros(2)
        dist.scatter(tensor, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None, 0)
        keep(tensor)
        tensor = torch.zeros(2)
        dist.reduce_scatter(tensor, [mine(2) + r for r in range(size)])
        keep(tensor)
        tensor = torch.zeros(2)
        dist.reduce_scatter_tensor(tensor, mine(2 * size))
        keep(tensor)
        received = [torch.zeros(2) for _ in range(size)]
        dist.all_to_all(received, [mine(2) + r for r in range(size)])
        keep(*received)
        tensor = torch.zeros(2 * size)
        dist.all_to_all_single(tensor, mine(2 * size))
        keep(tensor)
        tensor = mine()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor)
        elif rank == 1:
            incoming = torch.zeros(4)
            dist.recv(incoming, 0)
            dist.send(incoming + 1, 0)
        keep(tensor)
        swapped = torch.zeros(4)
        pair = [
            dist.P2POp(dist.isend, mine(), (rank + 1) % size),
            dist.P2POp(dist.irecv, swapped, (rank - 1) % size),
        ]
        for request in dist.batch_isend_irecv(pair):
            request.wait()
        keep(swapped)
        many = [mine(), mine(2)]
        with dist.distributed_c10d._coalescing_manager():
            for tensor in many:
                dist.all_reduce(tensor)
        keep(*many)
        dist.barrier()
        dist.barrier(async_op=True).wait()
        keep(functional.all_reduce(mine(), "sum", dist.group.WORLD).wait())
        keep(functional.all_gather_tensor(mine(), 0, dist.group.WORLD).wait())
        out.append(dist.get_world_size())
    return out


def test_all_other_collectives_equal_gloo(on_ranks: OnRanks) -> None:
    assert on_ranks(2, collectives, "optireduce") == on_ranks(2, collectives, "gloo")


def groups(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory, label="first") as world:
        assert dist.get_backend() == "optireduce"
        pair = dist.new_group([0, 2])
        single = dist.new_group([1])
        other = dist.new_group(backend="gloo")
        copy = dist.new_group(pg_options=optireduce.Config(interface="lo", mtu=1500))
        tensor = torch.full((1_000,), float(rank))
        if rank in (0, 2):
            dist.all_reduce(tensor, group=pair)
            assert torch.equal(tensor, torch.full((1_000,), 2.0))
            assert operations(pair) == 1
        else:
            dist.all_reduce(tensor, group=single)
            assert torch.equal(tensor, torch.ones(1_000))
        assert operations() == 0
        works = []
        tensors = []
        for _ in range(5):
            for group in (world, copy, other):
                tensors.append(torch.full((2_000,), float(rank)))
                works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
        for work in works:
            work.wait()
        assert all(torch.equal(tensor, torch.full((2_000,), 3.0)) for tensor in tensors)
        assert operations() == operations(copy) == 5
        with pytest.raises(TypeError, match="gloo"):
            optireduce.stats(other)
        dist.destroy_process_group(copy)
        dist.all_reduce(tensor)
    for label in ("second", "third"):
        with process_group("optireduce", rank, size, directory, label=label):
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor[0] == size
    with pytest.raises(TypeError, match="no process group"):
        optireduce.stats()


def test_groups_and_making_them_again(on_ranks: OnRanks) -> None:
    on_ranks(3, groups)


def faults(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory, label="mismatch"):
        for use_future in (False, True):
            work = dist.all_reduce(torch.ones(10 + rank), async_op=True)
            with pytest.raises(RuntimeError, match=r"10.*11|11.*10") as caught:
                work.get_future().wait() if use_future else work.wait()
            if not use_future:
                assert isinstance(caught.value, optireduce.MismatchError)
                assert isinstance(caught.value, dist.DistBackendError)
            assert not work.is_success()
            assert isinstance(work.exception(), optireduce.MismatchError)
    with process_group("optireduce", rank, size, directory, label="timeout") as group:
        dist.barrier()
        if rank == 0:
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=0.5)
            with pytest.raises(optireduce.OperationTimeout) as caught:
                group.allreduce([torch.ones(10)], options).wait()
            assert isinstance(caught.value, dist.DistBackendError)
            assert caught.value.ranks == (1,)
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5))
            with pytest.raises(optireduce.OperationTimeout):
                dist.all_reduce(torch.ones(10))
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=120))
        dist.barrier()
    with process_group("optireduce", rank, size, directory, label="closed") as group:
        dist.barrier()
        works = [dist.all_reduce(torch.ones(10), async_op=True)] if rank == 0 else []
        futures = [work.get_future() for work in works]
    for future in futures:
        with pytest.raises(RuntimeError, match=r"ClosedError|PeerLeftError"):
            future.wait()
    with pytest.raises(optireduce.ClosedError):
        group.allreduce([torch.ones(10)], dist.AllreduceOptions())


def test_faults_are_errors_and_the_group_can_be_destroyed(on_ranks: OnRanks) -> None:
    on_ranks(2, faults)


def refusals(rank: int, size: int, directory: str) -> None:
    with process_group("optireduce", rank, size, directory) as group:
        options = dist.AllreduceOptions()
        with pytest.raises(ValueError, match=r"meta.*CPU.*attach"):
            group.allreduce([torch.ones(3, device="meta")], options)
        assert operations() == 0
    with pytest.raises(optireduce.ConfigError, match="pg_options is a dict"):
        dist.init_process_group(
            "optireduce", store=dist.HashStore(), rank=0, world_size=1, pg_options={"mtu": 3}
        )
    recover(rank, size, directory)


def test_refusals_name_what_is_wrong(on_ranks: OnRanks) -> None:
    on_ranks(1, refusals)


def bad_interface(rank: int, size: int, directory: str) -> None:
    config = optireduce.Config(interface="eth99" if rank else "lo")
    with (
        pytest.raises(optireduce.OptiReduceError) as caught,
        process_group("optireduce", rank, size, directory, config=config),
    ):
        pass
    assert "eth99" in str(caught.value)
    if rank == 0:
        assert isinstance(caught.value, dist.DistBackendError)
    recover(rank, size, directory)


def recover(rank: int, size: int, directory: str) -> None:
    """A failed init must not spoil the next one (which also resets torch's count of groups for the next
    test)."""
    with process_group("optireduce", rank, size, directory, label="recover"):
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor[0] == size


def test_bad_interface_on_one_rank(on_ranks: OnRanks) -> None:
    on_ranks(2, bad_interface)


def test_every_method_that_cpp_calls_back_is_overridden() -> None:
    """One that falls through runs Gloo's code with the GIL held, which deadlocks now and then; see
    process_group.py."""
    from optireduce.process_group import OptiReduceGroup

    called_back = (
        "allgather allgather_into_tensor_coalesced all_gather_single_coalesced allreduce allreduce_coalesced "
        "alltoall_base all_to_all_single barrier broadcast reduce_scatter reduce_scatter_tensor_coalesced "
        "reduce_scatter_single_coalesced send recv abort getBackendName"
    )
    there = [name for name in called_back.split() if hasattr(dist.ProcessGroup, name)] + ["getBackendName"]
    assert [name for name in there if name not in vars(OptiReduceGroup)] == []
