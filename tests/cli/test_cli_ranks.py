"""Local ranks: whatever happens to one of them, the command ends and says which."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optireduce.cli.errors import CommandFailed
from optireduce.cli.ranks import LocalRanks, Seat

LIMIT_SECONDS = 120.0


def greet(seat: Seat, greeting: str) -> None:
    seat.send((greeting, seat.rank, seat.size))


def fail_on_one(seat: Seat) -> None:
    if seat.rank == 1:
        raise ValueError("no luck\nsecond line")
    threading.Event().wait()


def die_on_one(seat: Seat) -> None:
    if seat.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def exit_on_one(seat: Seat) -> None:
    if seat.rank == 1:
        os._exit(3)


def complain_about_the_dead(seat: Seat, fifo: str) -> None:
    """Rank 0 reports a broken connection before rank 1 dies, which waits for rank 0's end of the pipe."""
    if seat.rank == 1:
        Path(fifo).read_bytes()
        os.kill(os.getpid(), signal.SIGKILL)
    os.open(fifo, os.O_WRONLY)
    raise ConnectionError("closed by peer")


def wait_forever(seat: Seat) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    seat.send("ready")
    threading.Event().wait()


def test_every_rank_can_report() -> None:
    with LocalRanks(greet, 3, ("hello",)) as ranks:
        assert sorted(ranks.messages(LIMIT_SECONDS)) == [("hello", rank, 3) for rank in range(3)]


def test_an_exception_is_reported_in_one_line_with_its_rank() -> None:
    with (
        LocalRanks(fail_on_one, 2, ()) as ranks,
        pytest.raises(CommandFailed, match=r"^rank 1 failed: ValueError: no luck$"),
    ):
        list(ranks.messages(LIMIT_SECONDS))
    assert not any(process.is_alive() for process in ranks.processes)


def test_a_killed_rank_does_not_hang_the_others() -> None:
    with (
        LocalRanks(die_on_one, 2, ()) as ranks,
        pytest.raises(CommandFailed, match="rank 1 was killed by SIGKILL"),
    ):
        list(ranks.messages(LIMIT_SECONDS))
    assert not any(process.is_alive() for process in ranks.processes)


def test_an_exit_code_is_a_failure() -> None:
    with (
        LocalRanks(exit_on_one, 2, ()) as ranks,
        pytest.raises(CommandFailed, match="rank 1 exited with code 3"),
    ):
        list(ranks.messages(LIMIT_SECONDS))


def test_the_rank_that_died_is_blamed_not_the_one_that_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optireduce.cli.ranks._ROOT_CAUSE_SECONDS", LIMIT_SECONDS)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with (
        LocalRanks(complain_about_the_dead, 2, (fifo,)) as ranks,
        pytest.raises(CommandFailed, match="rank 1 was killed"),
    ):
        list(ranks.messages(LIMIT_SECONDS))


def test_silence_ends_the_run_even_when_ranks_ignore_termination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optireduce.cli.ranks._STOP_SECONDS", 0.2)
    with LocalRanks(wait_forever, 2, ()) as ranks:
        received = ranks.messages(LIMIT_SECONDS)
        assert [next(received), next(received)] == ["ready", "ready"]
        with pytest.raises(CommandFailed, match=r"ranks \[0, 1\] reported nothing"):
            list(ranks.messages(0.1))
    assert not any(process.is_alive() for process in ranks.processes)


COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
from test_cli_ranks import tell_pid_and_wait
from optireduce.cli.ranks import LocalRanks
if __name__ == "__main__":
    with LocalRanks(tell_pid_and_wait, 2, ()) as ranks:
        for pid in ranks.messages(120):
            print(pid, flush=True)
"""


def tell_pid_and_wait(seat: Seat) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    seat.send(os.getpid())
    threading.Event().wait()


def test_ranks_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """A killed command cannot clean up, so its ranks would stay for ever."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    arguments = [sys.executable, str(script), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as command:
        assert command.stdout is not None
        ranks = [os.pidfd_open(int(command.stdout.readline())) for _ in range(2)]
        command.kill()
    ended = [
        bool(select.select([rank], [], [], LIMIT_SECONDS)[0]) for rank in ranks
    ]  # a pidfd is readable after the end
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
    assert ended == [True, True]
