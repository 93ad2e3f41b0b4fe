"""How processes live and die around a group: forks, exceptions, signals, restarts, old packets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lifecycle_scripts as scripts
import pytest

LIMIT_SECONDS = 300.0


def start(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pair(code: str, folder: Path) -> list[subprocess.Popen[str]]:
    return [start(code, str(rank), str(folder / "store")) for rank in range(2)]


def ends(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit code and output of each; a rank that hangs is killed, and fails the test."""
    try:
        outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [(process.returncode, output) for process, output in zip(ranks, outputs, strict=True)]


def test_data_loader_workers_are_forked_in_the_middle_of_training(tmp_path: Path) -> None:
    for code, output in ends(pair(scripts.DATA_LOADER, tmp_path)):
        assert code == 0, output
        assert "end of script" in output


def test_twenty_groups_one_after_the_other_leave_nothing_behind(tmp_path: Path) -> None:
    for code, output in ends(pair(scripts.MANY_LIVES, tmp_path)):
        assert code == 0, output
        told = {line.split()[0]: [int(value) for value in line.split()[1:]] for line in output.splitlines()}
        (threads, files, memory), after = told["before"], told["after"]
        assert after[0] <= threads, output
        assert after[1] <= files, output
        # A group holds more than half a MiB: twenty that stayed would show.
        assert after[2] - memory < 8 << 20, output


@pytest.mark.parametrize("fixed", [False, True])
def test_an_exception_on_one_rank_is_told_to_the_other(tmp_path: Path, fixed: bool) -> None:
    """A rank that ends says goodbye. The other trains on alone, unless its loop needs every rank."""
    script = scripts.RAISES.replace("Linear(4, 2)", "BatchNorm1d(4)") if fixed else scripts.RAISES
    (code, output), (raised, mistake) = ends(pair(script, tmp_path))
    assert raised == 1, mistake
    assert "a mistake of rank 1" in mistake
    assert "all steps" not in mistake
    if fixed:
        assert code == 1, output
        assert "all steps" not in output
    else:
        assert code == 0, output
        assert "rank 1 has left the group" in output
        assert "all steps" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_an_all_reduce_ends_the_rank(
    tmp_path: Path, number: signal.Signals
) -> None:
    ranks = pair(scripts.INTERRUPTED, tmp_path)
    try:
        assert ranks[0].stdout is not None
        assert "waiting" in ranks[0].stdout.readline()
        ranks[0].send_signal(number)
        output, _ = ranks[0].communicate(timeout=LIMIT_SECONDS)  # far below the operation's own limit
        if number == signal.SIGINT:
            assert "KeyboardInterrupt" in output
        assert ranks[0].returncode in (-number, 1, 130), output
        code, output = ends(ranks[1:])[0]
        assert code == 0, output
    finally:
        for process in ranks:
            process.kill()


def test_torchrun_restarts_a_killed_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(scripts.RESTARTED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank} is through in attempt 1" in done.stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to forge packets")
@pytest.mark.skipif(
    shutil.which("unshare") is None or shutil.which("ip") is None, reason="needs unshare and ip"
)
def test_packets_of_a_former_session_are_counted_and_change_nothing() -> None:
    inside = 'ip link set lo up && exec "$0" -c "$1" "$2"'
    command = [
        "unshare",
        "--net",
        "sh",
        "-c",
        inside,
        sys.executable,
        scripts.REPLAY,
        str(Path(__file__).parent),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        recorded, forged, invalid, failed = map(int, line.split())
        assert forged == recorded, line
        assert invalid == failed == 0, line
