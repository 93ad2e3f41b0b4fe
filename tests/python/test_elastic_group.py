"""What an ElasticGroup is made from, what attach() refuses with one, and how ranks begin alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import MemoryStore, free_port, group_outcomes
from torch import nn
from torch.distributed import HashStore
from torch.nn.parallel import DistributedDataParallel

from optireduce import Config, ConfigError, ConnectError, ElasticGroup, MismatchError, attach
from optireduce.elastic import initial
from optireduce.elastic.initial import begin_alike
from optireduce.exchange import StoreExchange
from optireduce.rendezvous import TcpStore
from optireduce.streams import Streams

CONFIG = Config(interface="lo")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, 3, "h:1"), r"rank = 3, size = 3 is not usable"),
        ((-1, 3, "h:1"), r"rank = -1"),
        (("0", 3, "h:1"), r"rank = '0'"),
        ((0, True, "h:1"), r"size = True"),
        ((1, 65, "h:1"), r"size = 65 is not usable: .* at most 64"),
        ((1, 2, "nowhere"), r"store = 'nowhere' is not usable: it must be \"host:port\""),
        ((1, 2, 7), r"store = 7 is not usable"),
        ((1, 2, "h:1", ""), r"job_id = '' is not usable"),
        ((1, 2, "h:1", "x" * 129), r"job_id = 'xxx"),
        ((1, 2, "h:1", 5), r"job_id = 5"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ElasticGroup(*arguments)


def test_rank_0_says_why_it_cannot_serve() -> None:
    port = free_port()
    taken = TcpStore("127.0.0.1", port, serve=True)
    with pytest.raises(ConnectError, match=r"rank 0 cannot serve the store at .*earlier process of rank 0"):
        ElasticGroup(0, 2, f"127.0.0.1:{port}")
    taken.close()
    group = ElasticGroup(0, 2, f"127.0.0.1:{port}")
    group.close()
    TcpStore("127.0.0.1", port, serve=True).close()


PLAIN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "OPTIREDUCE_STORE": "h:5", "SLURM_JOB_ID": "77"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (PLAIN, (1, 3, "localhost", 1234, "default")),
        (PLAIN | {"OPTIREDUCE_STORE": "[::1]:9", "TORCHELASTIC_RUN_ID": "r"}, (1, 3, "::1", 9, "r")),
        (
            PLAIN | {"MASTER_ADDR": "::1", "OPTIREDUCE_JOB_ID": "j", "SLURM_JOB_ID": "s"},
            (1, 3, "::1", 1234, "j"),
        ),
        (SLURM, (2, 4, "h", 5, "77")),
    ],
)
def test_the_environment_tells_everything(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[Any, ...]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    group = ElasticGroup.from_env()
    store = group.board.store
    assert isinstance(store, TcpStore)
    assert (group.rank, group.size, store.host, store.port, group.board.job_id) == expected
    assert ElasticGroup.from_env(rank=0, store=HashStore(), job_id="mine").board.job_id == "mine"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"RANK": ""}, "RANK is not in the environment, nor is SLURM_PROCID"),
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE='x' is not usable: it must be an integer"),
        (
            {"MASTER_PORT": ""},
            "OPTIREDUCE_STORE is not in the environment, nor are MASTER_ADDR and MASTER_PORT",
        ),
        ({"MASTER_PORT": "99999"}, 'store = .* is not usable: it must be "host:port"'),
    ],
)
def test_a_bad_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], text: str
) -> None:
    for name, value in (PLAIN | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=text):
        ElasticGroup.from_env()


def attached(module: nn.Module | None = None, config: Config = CONFIG, **options: Any) -> Any:
    """A session of a group of one."""
    group = ElasticGroup(0, 1, HashStore(), options.pop("job_id", "default"))
    model = DistributedDataParallel(module or nn.Linear(4, 4), process_group=group.local, **options)
    return attach(model, config, group, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)), model, group


def test_a_group_of_one_trains() -> None:
    session, model, _ = attached()
    with session:
        model(torch.ones(2, 4)).sum().backward()
        assert session.last_step is not None or session.step == 1
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"find_unused_parameters": True}, ValueError, "cannot be used: find_unused_parameters"),
        ({"module": nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))}, ValueError, "SyncBatchNorm"),
        ({"config": Config(delivery="best-effort")}, ConfigError, 'delivery = .* is not usable.*use "carry"'),
        (
            {"config": Config(multicast="on")},
            ConfigError,
            'multicast = "on" is not usable in an ElasticGroup',
        ),
        ({"config": Config(groups=2)}, ConfigError, "groups = 2 is not usable in an ElasticGroup"),
    ],
)
def test_what_a_process_that_joins_would_miss_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        attached(**options)


def test_buffers_that_ddp_broadcasts_go_nowhere() -> None:
    session, model, _ = attached(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with session:
        model(torch.ones(2, 4)).sum().backward()
        assert not session.fixed_membership


def test_uneven_inputs_are_refused_when_they_are_seen() -> None:
    session, model, _ = attached()
    model._join_config = model._join_config._replace(enable=True)  # torch's own join() needs a default group
    with session, pytest.raises(ValueError, match=r"cannot be used: join\(\)"):
        model(torch.ones(2, 4)).sum().backward()


def test_a_second_model_is_refused() -> None:
    session, _, group = attached()
    other = DistributedDataParallel(nn.Linear(4, 4), process_group=group.local)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with session, pytest.raises(ValueError, match="several attached models"):
        attach(other, CONFIG, group, optimizer=optimizer)


def test_a_model_or_optimizer_that_does_not_fit_is_named() -> None:
    group = ElasticGroup(0, 1, HashStore())
    model = DistributedDataParallel(nn.Linear(4, 4), process_group=group.local)
    with pytest.raises(ValueError, match="optimizer = NoneType is not usable with an ElasticGroup"):
        attach(model, CONFIG, group)
    part = torch.optim.SGD([model.module.weight], lr=0.1)
    with pytest.raises(ValueError, match="optimizer = SGD is not usable"):
        attach(model, CONFIG, group, optimizer=part)
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="process_group is a int: it must be a ProcessGroup, an ElasticGroup"):
        attach(model, CONFIG, 3, optimizer=whole)  # type: ignore[arg-type]

    class Two:
        def size(self) -> int:
            return 2

    model.process_group = Two()
    with pytest.raises(ValueError, match=r"process group of 2 ranks.*process_group=group\.local"):
        attach(model, CONFIG, group, optimizer=whole)


def strange(rank: int) -> nn.Module:
    """Values that arithmetic would change, of every type."""
    torch.manual_seed(rank)
    module = nn.Linear(33, 7)
    bits = torch.randint(-(2**31), 2**31 - 1, (501,), dtype=torch.int32)
    module.register_buffer("floats", bits.view(torch.float32))
    module.register_buffer("halves", bits.view(torch.bfloat16))
    module.register_buffer("doubles", torch.tensor([-0.0, 5e-324, float("nan"), rank]).double())
    module.register_buffer("counts", torch.tensor(rank + 1))
    module.register_buffer("flags", torch.tensor([rank == 0, rank == 1]))
    module.register_buffer("none", torch.empty(0))
    module.weight = nn.Parameter(torch.randn(33, 7).t())
    return module


def bits_of(module: nn.Module) -> list[list[int]]:
    tensors = [*module.parameters(), *module.buffers()]
    return [each.detach().contiguous().reshape(-1).view(torch.uint8).tolist() for each in tensors]


@pytest.mark.parametrize("batch", [1, 1 << 20])
def test_ranks_begin_with_the_bits_of_rank_0(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(initial, "_BATCH_BYTES", batch)
    store = MemoryStore()
    modules = [strange(rank) for rank in range(3)]
    wanted = bits_of(modules[0])

    def begin(communicator: Any) -> None:
        exchange = StoreExchange(store, communicator.rank, 3, "begin")
        begin_alike(exchange, modules[communicator.rank], communicator.all_reduce_async, 60.0)

    assert group_outcomes(3, begin) == [None] * 3
    assert [bits_of(module) for module in modules] == [wanted] * 3


def test_models_that_differ_are_told() -> None:
    store = MemoryStore()

    def begin(communicator: Any) -> None:
        exchange = StoreExchange(store, communicator.rank, 2, "begin")
        begin_alike(exchange, nn.Linear(4, 4 + communicator.rank), communicator.all_reduce_async, 60.0)

    for found in group_outcomes(2, begin):
        assert isinstance(found, MismatchError)
        assert "rank 1 has other parameters" in str(found)
        assert "2 tensors with 25 values there, 2 tensors with 20 values on rank 0" in str(found)


def test_a_bucket_that_the_others_know_is_not_new_to_a_process_that_joins() -> None:
    """Its first step with it is exact, and the others' is not: operations must not differ."""

    class Bucket:
        def index(self) -> int:
            return 0

        def parameters(self) -> list[torch.Tensor]:
            return [model.weight]

        def gradients(self) -> list[torch.Tensor]:
            return [buffer.view(2, 2)]

        def buffer(self) -> torch.Tensor:
            return buffer

    model, buffer = nn.Linear(2, 2, bias=False), torch.zeros(4)
    bucket: Any = Bucket()
    theirs, ours, fresh = (Streams(None) for _ in range(3))  # type: ignore[arg-type]
    assert [theirs.enter(bucket, model)[1] for _ in range(2)] == [True, False]
    ours.load_state_dict(theirs.state_dict())
    assert not ours.enter(bucket, model)[1]
    fresh.load_state_dict(Streams(None).state_dict())  # type: ignore[arg-type]
    assert fresh.enter(bucket, model)[1]
