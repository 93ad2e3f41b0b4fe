"""MPI as a baseline: our side of PMI-1, and MPICH itself where it is installed."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from labs import needs_a_lab

from optireduce.cli import main
from optireduce.trials.allreduce.plan import mpi_is_installed
from optireduce.trials.pmi import PmiServer


class Client:
    """A rank as MPICH's library behaves."""

    def __init__(self, server: PmiServer, rank: int) -> None:
        self.variables, descriptor = server.seat(rank)
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.settimeout(10)
        self._lines = self._socket.makefile()

    def ask(self, text: str) -> None:
        self._socket.sendall(text.encode() + b"\n")

    def answer(self) -> str:
        return self._lines.readline().strip()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def clients() -> list[Client]:
    server = PmiServer(2)
    made = [Client(server, rank) for rank in range(2)]
    server.all_started()
    return made


def test_ranks_know_who_they_are(clients: list[Client]) -> None:
    assert [client.variables["PMI_RANK"] for client in clients] == ["0", "1"]
    assert {client.variables["PMI_SIZE"] for client in clients} == {"2"}


def test_what_one_rank_puts_the_other_gets(clients: list[Client]) -> None:
    clients[0].ask("cmd=put kvsname=ranks key=address value=10.0.0.1:99=x")
    assert clients[0].answer() == "cmd=put_result rc=0 msg=success"
    clients[1].ask("cmd=get kvsname=ranks key=address")
    assert clients[1].answer() == "cmd=get_result rc=0 msg=success value=10.0.0.1:99=x"
    clients[1].ask("cmd=get kvsname=ranks key=nothing")
    assert "rc=-1" in clients[1].answer()


def test_every_rank_is_on_a_node_of_its_own(clients: list[Client]) -> None:
    clients[0].ask("cmd=get kvsname=ranks key=PMI_process_mapping")
    assert clients[0].answer().endswith("value=(vector,(0,2,1))")


def test_a_barrier_opens_when_all_are_there(clients: list[Client]) -> None:
    for _ in range(2):
        clients[0].ask("cmd=barrier_in")
        clients[0].ask("cmd=get_appnum")
        assert clients[0].answer() == "cmd=appnum appnum=0 rc=0", "it was not let through alone"
        clients[1].ask("cmd=barrier_in")
        assert [client.answer() for client in clients] == ["cmd=barrier_out rc=0"] * 2


def test_an_unknown_command_is_answered(clients: list[Client]) -> None:
    clients[0].ask("cmd=spawn execname=x")
    assert "rc=-1" in clients[0].answer()


def test_a_rank_that_goes_disturbs_nobody(clients: list[Client]) -> None:
    clients[0].close()
    clients[1].ask("cmd=get_universe_size")
    assert clients[1].answer() == "cmd=universe_size size=2 rc=0"


@needs_a_lab
@pytest.mark.slow
@pytest.mark.skipif(not mpi_is_installed(), reason="needs mpich and mpi4py")
def test_mpi_takes_its_turn(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    options = ["--hosts", "2", "--iterations", "2", "--bytes", "64K", "--json", str(out)]
    assert main(["lab", "bench", "quiet", "--systems", "mpi,optireduce", *options]) == 0
    rows = json.loads(out.read_text())["figures"]
    assert [row["wrong"] for row in rows] == [0, 0]
    assert rows[0]["sent_bytes"] > 60_000, "over the network, not through memory"


@pytest.mark.skipif(mpi_is_installed(), reason="mpi4py is installed")
def test_without_mpi_the_error_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "bench", "quiet", "--systems", "gloo,mpi"]) == 2
    assert "optireduce[mpi]" in capsys.readouterr().err
