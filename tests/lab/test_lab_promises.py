"""The commands that check promises: what they call a failure, from made-up runs, and each of them once."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from labs import needs_a_lab

from optireduce.cli import main
from optireduce.lab import Lab, Lateness
from optireduce.trials.places import Loopback
from optireduce.trials.replicas.outcome import RankStory, Run
from optireduce.trials.replicas.plan import GLOO, OURS, ReplicaPlan
from optireduce.trials.replicas.rank import Counting, digest
from optireduce.trials.replicas.run import Event, run_replicas
from optireduce.trials.seat import Seat

# The commands have the names of their modules.
busy, cut, kill, pauses, replicas = (
    import_module(f"optireduce.cli.lab.{name}") for name in ("busy", "cut", "kill", "pauses", "replicas")
)

STEPS, SECONDS = 20, 0.1
ALL = [0, 1, 2]


def run_of(
    *, members: list[int] = ALL, left_at: int = STEPS, ends: dict[int, Any] | None = None, ranks: int = 3
) -> Run:
    """Everybody makes all steps of 0.1 s, one after the other; from ``left_at`` on only ``members`` are
    members, and the others make none."""
    run = Run(STEPS, [RankStory(rank) for rank in range(ranks)])
    everybody = list(range(ranks))
    for story in run.ranks:
        for step in range(STEPS):
            view, there = (1, everybody) if step < left_at else (2, members)
            if story.rank in there:
                begin = step * SECONDS
                story.note(
                    {"kind": "step", "step": step, "begin": begin, "end": begin + SECONDS, "view": view,
                     "members": there, "missing": 0.0}
                )  # fmt: skip
        story.note({"kind": "check", "step": 9, "digest": "a"})
        if story.rank in members:
            final = {"digest": "b", "least": float(STEPS), "most": float(STEPS)}
            story.note({"kind": "final"} | final | (ends or {}).get(story.rank, {}))
    return run


# --- Figures -----------------------------------------------------------------------------------------------


def test_equal_digests_of_every_step_are_equal_replicas() -> None:
    run = run_of()
    assert run.checks() == [(9, 3, True), (STEPS, 3, True)]
    assert replicas.problems_of("x", run) == []


def test_one_other_digest_is_a_difference() -> None:
    run = run_of()
    run.ranks[1].checks[9] = "other"
    assert run.unequal() == [9]
    assert replicas.problems_of("x", run) == ["x: replicas differ after step 9"]
    flushed = run_of(ends={2: {"digest": "other"}})
    assert flushed.unequal() == [STEPS]


@pytest.mark.parametrize("end", [{"least": 19.75}, {"most": 20.25}, {"least": float("nan")}])
def test_a_gradient_that_does_not_count_once_is_seen_in_the_counter(end: dict[str, float]) -> None:
    run = run_of(ends={1: end})
    assert run.allowed_deviation() == 0
    assert "a counter is off" in replicas.problems_of("x", run)[0]


def test_a_removed_ranks_last_samples_are_excepted() -> None:
    run = run_of(members=[0, 1], left_at=7, ends={0: {"most": 20.5}, 1: {"most": 20.5}})
    assert (run.views(), run.last_members()) == ([1, 2], [0, 1])
    assert run.out_of_view(2) == STEPS - 7
    assert run.deviation() == 0.5
    assert run.allowed_deviation() == 2.5  # five steps of one of two: it did not come back
    assert replicas.problems_of("x", run) == []


def test_a_rank_that_failed_is_named() -> None:
    run = run_of()
    run.ranks[1].note({"kind": "failed", "step": 3, "begin": 0.3, "end": 0.4, "error": "LeftBehind: far"})
    assert "x: rank 1 failed: LeftBehind: far" in replicas.problems_of("x", run)


def test_the_table_says_equal_or_different() -> None:
    run = run_of()
    different = run_of()
    different.ranks[0].checks[9] = "other"
    shown = replicas.table({"good": run, "bad": different})
    assert list(shown.columns[1].cells) == ["equal", "[red]different after step 9[/]"]


def test_survivors_may_take_half_a_second_more() -> None:
    run = run_of(members=[0, 1], left_at=7)
    run.moments["kill"] = 6.5 * SECONDS
    assert kill.problems_of(run, victim=2) == []
    run.ranks[0].steps[7]["end"] += 0.45
    assert kill.problems_of(run, victim=2) == []
    run.ranks[0].steps[7]["end"] += 0.1
    assert "a step took 0.65 s" in kill.problems_of(run, victim=2)[0]
    assert list(kill.table([run], 2).columns[1].cells) == ["650 ms"]


def test_a_killed_ranks_own_last_step_is_no_matter() -> None:
    run = run_of(members=[0, 1], left_at=7)
    run.moments["kill"] = 6.5 * SECONDS
    run.ranks[2].steps[6]["end"] += 5.0
    assert kill.problems_of(run, victim=2) == []


def test_a_survivor_that_did_not_get_to_the_end_is_missed() -> None:
    run = run_of(members=[0, 1], left_at=7)
    run.moments["kill"] = 6.5 * SECONDS
    run.ranks[1].digest = None
    assert "1 of 2 survivors" in kill.problems_of(run, victim=2)[0]


def test_sleeping_ranks_stay_members_and_cost_what_they_cost_with_gloo() -> None:
    runs = {GLOO: [run_of()], OURS: [run_of()], "stopped": [run_of()]}
    assert pauses.problems_of(runs, hosts=3) == []
    assert pauses.ratio(runs) == 1.0
    runs[OURS][0].ranks[0].steps[-1]["end"] += 0.2
    assert "more than 1.02" in pauses.problems_of(runs, hosts=3)[0]


def test_a_sleeping_rank_that_was_removed_is_a_failure() -> None:
    runs = {GLOO: [run_of()], OURS: [run_of(left_at=7)], "stopped": [run_of(left_at=7)]}
    assert pauses.problems_of(runs, hosts=3) == ["optireduce: a sleeping rank was removed from the view"]


def test_a_stopped_rank_must_be_a_member_again() -> None:
    runs = {GLOO: [run_of()], OURS: [run_of()], "stopped": [run_of(members=[0, 1], left_at=7)]}
    assert "stopped: the members at the end are [0, 1]" in pauses.problems_of(runs, hosts=3)


def test_only_one_side_of_a_cut_may_train() -> None:
    run = run_of(members=[0, 1, 2], left_at=3, ranks=5)
    run.moments |= {"cut": -1.5, "healed": STEPS * SECONDS}
    assert cut.sides(run) == {(0, 1, 2): STEPS - 5, (3, 4): 0}
    assert cut.problems_of(run) == []
    both = run_of(ranks=5, members=[0, 1, 2, 3, 4])
    both.moments |= run.moments
    assert "both sides trained" in cut.problems_of(both)[0]


def test_one_false_suspicion_is_allowed() -> None:
    assert busy.problems_of(run_of()) == []
    once = run_of(members=[0, 1], left_at=7)
    assert once.removals() == 1
    assert busy.problems_of(once) == []
    twice = run_of(members=[0], left_at=7)
    assert "2 live ranks were removed" in busy.problems_of(twice)[0]


# --- What ranks do -----------------------------------------------------------------------------------------


def test_a_plan_travels_to_the_ranks() -> None:
    plan = ReplicaPlan(10, naps={"3": 1.0}, late=Lateness(0.1, 0.2), settings={"drop": 0.03})
    assert Seat.from_json(Seat(plan, 1, 4, "lo", "/tmp").to_json(), ReplicaPlan).plan == plan


def test_rank_0_sleeps_and_a_straggler_is_one_rank_at_a_time() -> None:
    plan = ReplicaPlan(1000, naps={"3": 1.5}, late=Lateness(0.15, 0.3))
    late = [[rank for rank in range(4) if plan.delay_seconds(rank, 4, step)] for step in range(1000)]
    assert plan.delay_seconds(0, 4, 3) >= 1.5
    assert max(map(len, late[4:])) == 1
    assert 100 < sum(map(len, late)) < 200
    assert {rank for ranks in late for rank in ranks} == {0, 1, 2, 3}


def test_a_digest_sees_parameters_and_optimizer_state() -> None:
    def trained(steps: int) -> tuple[Counting, Any]:
        torch.manual_seed(1)
        model = Counting(10, transformer=True)
        optimizers = model.optimizers()
        batch = torch.randint(256, (1, 8)), torch.randint(256, (1, 8))
        for _ in range(steps):
            model(batch).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return model, optimizers

    model, optimizers = trained(2)
    assert model.counter.tolist() == [2.0] * 10
    assert digest(model, optimizers) == digest(*trained(2))
    before = digest(model, optimizers)
    state = optimizers[1].state_dict()["state"][0]
    state["exp_avg"].view(-1)[0] += 1e-6
    assert digest(model, optimizers) != before


# --- Real runs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_events_come_when_rank_0_has_made_their_step() -> None:
    seen: list[int] = []
    event = Event("seen", 4, lambda ranks: seen.append(len(ranks.processes)), 0.05)
    # Rank 0 sleeps, so that the run is not over before the event has its turn.
    run = run_replicas(Loopback(2), ReplicaPlan(300, GLOO, values=1000, naps={"6": 3.0}), events=[event])
    assert seen == [2]
    assert run.moments["seen"] >= run.ranks[0].steps[4]["end"]
    assert run.unequal() == []
    assert run.deviation() == 0


@needs_a_lab
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["replicas", "--scenarios", "straggler,kill", "--steps", "30", "--hosts", "3"],
        ["pauses", "--steps", "40", "--pairs", "1", "--hosts", "3"],
        ["kill", "--steps", "40", "--repeats", "1", "--hosts", "3"],
        ["cut", "--seconds", "5"],
        ["busy", "--steps", "20", "--hosts", "3"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_runs_and_leaves_its_result(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether this machine is fast enough for the promise is for the command to say."""
    out = tmp_path / "found.json"
    assert main(["lab", *command, "--out", str(out)]) in (0, 1)
    assert "differ" not in capsys.readouterr().err
    assert json.loads(out.read_text())


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "replicas", "--scenarios", "windy"]) == 2
    assert "'windy' is not one of tail3" in capsys.readouterr().err


@needs_a_lab
def test_a_split_lets_nothing_pass_between_its_sides_until_it_heals() -> None:
    ping = "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))"
    server = "import socket, time; s = socket.create_server(('0.0.0.0', 5000)); time.sleep(600)"
    with Lab(hosts=3) as lab:
        lab.popen(0, [sys.executable, "-c", server])

        def reaches(host: int, seconds: int = 30) -> bool:
            command = [sys.executable, "-c", ping, lab.addresses[0], str(seconds)]
            return lab.run(host, command, capture_output=True).returncode == 0

        while not reaches(1):
            pass
        lab.split([2])
        assert (reaches(1), reaches(2, seconds=1)) == (True, False)
        lab.heal([2])
        assert reaches(2)
