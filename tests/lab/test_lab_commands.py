"""The commands of the lab: what they print, refuse and leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import pytest
from labs import needs_a_lab, without_firewall

from optireduce.cli import main
from optireduce.lab import ENVIRONMENTS, Lab
from optireduce.lab.privilege import why_not

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
SHOW = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'])"


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True, timeout=20).stdout


def test_environments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "environments"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ENVIRONMENTS)


@needs_a_lab
def test_a_lab_can_be_checked_and_nothing_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "check"]) == 0
    assert "can be built here" in capsys.readouterr().out
    assert f"-{os.getpid()}-" not in namespaces()


@needs_a_lab
def test_hosts_that_do_not_reach_each_other_are_no_lab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class CutOff(Lab):
        def __enter__(self) -> Lab:
            lab = super().__enter__()
            lab.cut(1)
            return lab

    monkeypatch.setattr(import_module("optireduce.cli.lab.check"), "Lab", CutOff)
    assert main(["lab", "check"]) == 1
    assert "do not reach each other" in capsys.readouterr().err


@needs_a_lab
def test_environments_that_this_machine_cannot_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_firewall(tmp_path, monkeypatch)
    assert main(["lab", "check"]) == 0
    out = capsys.readouterr().out
    assert "environment = 'loss3' needs the program 'iptables'" in out
    assert "'tail3'" not in out


@needs_a_lab
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["lab", "bench", "loss3"], 2),
        (["lab", "run", "loss3", "--", "true"], 2),
        (["demo", "--environment", "loss3"], 2),
        (["experiment", "tta"], 1),  # it comes to loss3 last
        (["lab", "soak"], 1),
    ],
)
def test_what_needs_a_firewall_is_refused_before_it_begins(
    arguments: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_firewall(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    assert "needs the program 'iptables'" in capsys.readouterr().err


@needs_a_lab
def test_a_program_runs_on_every_host_and_knows_its_rank(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "run", "quiet", "--hosts", "2", "--", sys.executable, "-c", SHOW]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert {line for line in lines if line.startswith("[")} >= {
        f"[{rank}] {rank} 2 {Lab(hosts=2).addresses[0]}" for rank in range(2)
    }


@needs_a_lab
def test_a_program_that_fails_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    assert main(["lab", "run", "quiet", "--hosts", "2", "--", sys.executable, "-c", script]) == 1
    assert "ended with code 7" in capfd.readouterr().err
    assert f"-{os.getpid()}-" not in namespaces()


@needs_a_lab
def test_a_crash_kills_the_last_host_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Host 0 ends well once host 1 has died: it holds a lock that only death gives up. An interpreter starts
    within the ten seconds before."""
    script = (
        "import fcntl, os, sys, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "if os.environ['RANK'] == '1':\n"
        "    fcntl.flock(file, fcntl.LOCK_EX); open(sys.argv[1] + '.held', 'w'); time.sleep(600)\n"
        "while not os.path.exists(sys.argv[1] + '.held'): time.sleep(.01)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('alone')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    assert main(["lab", "run", "crash", "--hosts", "2", "--fault-after", "10", "--", *command]) == 0
    assert "[0] alone" in capfd.readouterr().out


@needs_a_lab
def test_ranks_of_a_host_send_their_bucket_through_its_link_together(tmp_path: Path) -> None:
    """Flat, each of them would: twice as much here."""
    found = tmp_path / "found.json"
    command = ["lab", "bench", "quiet", "--hosts", "2", "--per-host", "2", "--rate", "none", "--bytes", "1M"]
    command += ["--iterations", "4", "--warmup", "2", "--frontier", "groups=auto,1", "--json", str(found)]
    assert main(command) == 0
    sent = {row["system"]: row["sent_bytes"] for row in json.loads(found.read_text())["figures"]}
    assert sent["groups=auto"] < 0.7 * sent["groups=1"]


def test_an_unknown_environment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "bench", "windy"]) == 2
    assert "'windy' is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lab", "bench", "quiet", "--systems", "nccl"], "'nccl' is not one of gloo"),
        (["lab", "bench", "quiet", "--set", "colour=red"], "colour"),
        (["lab", "bench", "quiet", "--bytes", "3"], "not a value for each of 4 hosts"),
        (["lab", "bench", "crash", "--frontier", "bound_most=1,2"], "leave one out"),
        (["lab", "bench", "crash", "--per-host", "2"], "its hosts have one rank each"),
        (["lab", "calibrate", "quiet"], "nothing to calibrate"),
        (["lab", "run", "quiet"], "no program to run"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_where_there_are_no_namespaces_the_command_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.setenv("PATH", "")
    assert main(["lab", "check"]) == 1
    assert "needs root (run it with sudo) or unprivileged user namespaces" in capsys.readouterr().err


@needs_a_lab
@pytest.mark.skipif(why_not() is not None, reason=f"no unprivileged user namespaces: {why_not()}")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to become an ordinary user")
def test_an_ordinary_user_gets_a_lab_of_his_own(tmp_path: Path) -> None:
    python = readable_python()
    if python is None:
        pytest.skip("no Python that another user may run, of this version")
    (tmp_path / "sitecustomize.py").write_text(
        f"import site\nsite.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
    )
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            python,
            "-m",
            "optireduce.cli",
            "lab",
            "check",
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "can be built here" in done.stdout


def readable_python() -> str | None:
    """The interpreter of these tests may lie in a home that others cannot enter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}"):
        command = [*NOBODY, "unshare", "--user", "--map-root-user", candidate, "-c", ""]
        if subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0:
            return candidate
    return None
