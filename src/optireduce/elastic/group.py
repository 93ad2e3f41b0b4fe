"""``ElasticGroup``: the ranks of a job, of which each may be restarted alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from ..communicator import DEFAULT_TIMEOUT_SECONDS
from ..errors import ConfigError, ConnectError
from ..rendezvous import Store, TcpStore, parse_address, store_host
from .board import Board
from .record import MOST_RANKS

_MOST_JOB_ID = 128
_JOB_IDS = ("OPTIREDUCE_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


class ElasticGroup:
    """A group for :func:`attach` whose ranks need no process group of torch between them. ::

        group = optireduce.ElasticGroup.from_env()
        model = DistributedDataParallel(model, process_group=group.local)
        session = optireduce.attach(model, process_group=group, optimizer=optimizer)

    A process that is started again with the same arguments joins the running group: it takes over the
    training state of the others, who train on meanwhile.

    ``store`` is how processes find each other: ``"host:port"`` (rank 0 serves there while its process runs),
    or a torch Store, which should outlive all ranks. The group's secret stays in it. Jobs on one store need
    different ids.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store | str,
        job_id: str = "default",
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """``timeout_seconds``: how long to wait for the other ranks, unless ``Config.timeout_seconds`` is
        set."""
        _check(rank, size, job_id)
        self.rank = rank
        self.size = size
        self.timeout_seconds = timeout_seconds
        self._served: TcpStore | None = None
        found = self._opened(store) if isinstance(store, str) else store
        if any(not callable(getattr(found, name, None)) for name in ("set", "get")):
            raise ConfigError(
                f'store = {store!r} is not usable: it must be "host:port", or a Store such as '
                f"torch.distributed.TCPStore"
            )
        self.master = store_host(found)
        self.board = Board(found, job_id)
        self.local = _local_group()

    @classmethod
    def from_env(cls, **options: Any) -> ElasticGroup:
        """From the environment that torchrun, Kubernetes operators and launch scripts make.

        ``RANK`` and ``WORLD_SIZE`` (or Slurm's ``SLURM_PROCID`` and ``SLURM_NTASKS``); the store from
        ``OPTIREDUCE_STORE`` ("host:port"), or ``MASTER_ADDR`` and ``MASTER_PORT``; the job's id from
        ``OPTIREDUCE_JOB_ID``, ``TORCHELASTIC_RUN_ID`` or ``SLURM_JOB_ID``. Arguments go before.
        """
        environ = os.environ
        job_id = next((environ[name] for name in _JOB_IDS if environ.get(name)), "default")
        found: dict[str, Any] = {"job_id": job_id} | options
        if "rank" not in found:
            found["rank"] = _number(environ, "RANK", "SLURM_PROCID")
        if "size" not in found:
            found["size"] = _number(environ, "WORLD_SIZE", "SLURM_NTASKS")
        if "store" not in found:
            found["store"] = _store_of(environ)
        return cls(**found)

    def close(self) -> None:
        """Stop serving the store, on rank 0. The end of the process does it as well."""
        if self._served is not None:
            self._served.close()
            self._served = None

    def _opened(self, address: str) -> TcpStore:
        host, port = parse_address(address)
        if self.rank != 0:
            return TcpStore(host, port, timeout_seconds=self.timeout_seconds)
        try:
            self._served = TcpStore(host, port, serve=True, timeout_seconds=self.timeout_seconds)
        except OSError as error:
            raise ConnectError(
                f"rank 0 cannot serve the store at {address!r}: {error}. The address must be of this host, "
                f"and its port free: an earlier process of rank 0 must have ended",
                [0],
            ) from error
        return self._served


def _check(rank: Any, size: Any, job_id: Any) -> None:
    numbers = all(isinstance(each, int) and not isinstance(each, bool) for each in (rank, size))
    if not numbers or not 0 <= rank < size:
        raise ConfigError(
            f"rank = {rank!r}, size = {size!r} is not usable: they must be integers, 0 <= rank < size"
        )
    if size > MOST_RANKS:
        raise ConfigError(
            f"size = {size} is not usable: a rank can join a running group of at most {MOST_RANKS} ranks; "
            f"without ElasticGroup, attach() takes more"
        )
    good = isinstance(job_id, str) and 0 < len(job_id) <= _MOST_JOB_ID and job_id.isprintable()
    if not good:
        raise ConfigError(
            f"job_id = {job_id!r} is not usable: it must be a text of at most {_MOST_JOB_ID} characters"
        )


def _number(environ: Mapping[str, str], *names: str) -> int:
    name = next((name for name in names if environ.get(name)), None)
    if name is None:
        raise ConfigError(f"{names[0]} is not in the environment, nor is {names[1]}: set it, or pass it")
    if not environ[name].isdecimal():
        raise ConfigError(f"{name}={environ[name]!r} is not usable: it must be an integer from 0")
    return int(environ[name])


def _store_of(environ: Mapping[str, str]) -> Store | str:
    if address := environ.get("OPTIREDUCE_STORE"):
        return address
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host or not port:
        raise ConfigError(
            "OPTIREDUCE_STORE is not in the environment, nor are MASTER_ADDR and MASTER_PORT: set it to "
            '"host:port", where rank 0 then serves, or pass store='
        )
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    parse_address(f"{host}:{port}")
    # torchrun's agent serves there already; it outlives its workers.
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False)


def _local_group() -> dist.ProcessGroup:
    """Of this process alone, known to nobody else: DDP's own collectives then talk to nobody."""
    store = HashStore()
    gloo_class: Any = dist.ProcessGroupGloo  # torch's stubs know no options
    options = gloo_class._Options()
    options._devices = [gloo_class.create_device(hostname="127.0.0.1")]
    gloo = gloo_class(store, 0, 1, options)
    gloo._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, 0, 1)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    name: Any = "optireduce-local"
    group._set_group_name(name)
    return group
