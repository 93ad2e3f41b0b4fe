"""What the README prints works as it stands there: its programs, its commands, and all links."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from optireduce.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SCRIPTS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"(?:\$ |`)optireduce ((?:lab )?[a-z]+)", README)))

needs_core = pytest.mark.skipif(
    find_spec("optireduce._core") is None, reason="the compiled core is not built"
)


def environment() -> dict[str, str]:
    """The interpreter of these tests is the newcomer's `python`. Unbuffered, ranks would print into each
    other's lines."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GLOO_SOCKET_IFNAME": "lo",
    }


@needs_core
def test_the_training_loop(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[0])
    command = re.findall(r"`(torchrun [^`]*)`", README)[0]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *command.split()[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("StepReport(step=99") == 2


@needs_core
def test_the_program_without_torch(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = next(program for program in PROGRAMS if "Communicator" in program)
    assert "29600" in program
    (tmp_path / "mean.py").write_text(program.replace("29600", str(port)))
    script = next(script for script in SCRIPTS if "mean.py" in script).removeprefix("$ ")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=300
    )
    assert sorted(line.split()[:2] for line in done.stdout.splitlines()) == [["0", "0.5"], ["1", "0.5"]], (
        done.stderr
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    assert main([*command.split(), "--help"]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
