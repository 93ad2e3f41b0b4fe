"""Named environments: each does to a lab what it says, and ends when told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from labs import needs_a_lab, until

from optireduce.lab import ENVIRONMENTS, Lab, LabError, calm, disturb, find_environment
from optireduce.lab.environments import BurstRecipe
from optireduce.lab.pauses import Pauses


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rate="20mbit") as made:
        yield made


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def sleeper(lab: Lab, host: int) -> subprocess.Popen[bytes]:
    process = lab.popen(host, ["sleep", "600"])
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    return process


@needs_a_lab
def test_a_stopped_host_stands_still_until_it_is_resumed(lab: Lab) -> None:
    programs = [sleeper(lab, host) for host in range(2)]
    lab.stop_host(1)
    until(lambda: state_of(programs[1]) == "T")
    assert state_of(programs[0]) != "T", "only host 1 was stopped"
    lab.resume_host(1)
    until(lambda: state_of(programs[1]) == "S")
    for process in programs:
        process.kill()
        process.wait()


@needs_a_lab
def test_a_killed_host_loses_its_programs_and_no_other_does(lab: Lab) -> None:
    programs = [sleeper(lab, host) for host in range(2)]
    lab.kill_host(0)
    assert programs[0].wait(20) == -9
    assert programs[1].poll() is None
    programs[1].kill()
    programs[1].wait()


@needs_a_lab
def test_pauses_come_and_go_and_leave_everything_running(lab: Lab) -> None:
    program = sleeper(lab, 0)
    only_host_0 = replace(find_environment("straggler"), pauses=Pauses(50, 1))
    disturb(lab, only_host_0, seed=3)
    until(lambda: state_of(program) == "T")
    until(lambda: state_of(program) == "S")
    calm(lab)
    assert state_of(program) != "T"
    program.kill()
    program.wait()


@needs_a_lab
def test_loss_begins_and_ends(lab: Lab) -> None:
    disturb(lab, replace(find_environment("loss1"), loss=1.0), seed=1)
    send = ["bash", "-c", f"echo x > /dev/udp/{lab.addresses[1]}/9"]
    lab.run(0, send, check=True)
    until(lambda: lab.dropped_by_loss(1) > 0)
    calm(lab)
    lab.run(0, send, check=True)
    assert lab.dropped_by_loss(1) == 0, "no rule is left that could count"


@needs_a_lab
@pytest.mark.parametrize("name", [name for name, found in ENVIRONMENTS.items() if found.bursts])
def test_bursts_begin_and_end(lab: Lab, name: str) -> None:
    def arrived() -> int:
        return sum(lab.link(host).down.sent_bytes for host in range(2))

    before = arrived()
    disturb(lab, find_environment(name), seed=1)
    until(lambda: arrived() > before + 10_000)
    calm(lab)
    assert not lab.background_running


@needs_a_lab
def test_bursts_need_links_with_a_rate() -> None:
    with (
        Lab(hosts=1, rate=None) as unshaped,
        pytest.raises(LabError, match=r"tail3.*needs links with a rate"),
    ):
        disturb(unshaped, find_environment("tail3"), seed=1)


def test_an_unknown_environment_is_named_with_those_that_exist() -> None:
    with pytest.raises(LabError, match=r"'windy' is not known.*quiet.*crash"):
        find_environment("windy")


def test_longer_bursts_carry_the_same_traffic_on_average() -> None:
    recipe = BurstRecipe(200, 400, 0.9)
    longer = recipe.lasting(500)
    assert longer.on_ms / (longer.on_ms + longer.off_ms) == pytest.approx(200 / 600)
    assert longer.share == recipe.share


@pytest.mark.parametrize("field", ["still_ms", "between_ms"])
def test_pauses_that_cannot_be_are_named(field: str) -> None:
    with pytest.raises(LabError, match=f"{field} = 0 is not usable"):
        Pauses(**({"still_ms": 1.0, "between_ms": 1.0} | {field: 0}))
