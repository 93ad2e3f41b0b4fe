"""Steps that lost too much: skipped on all ranks or on none, and an end that names the links."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from optireduce import TrainingHaltedError
from optireduce.report import PeerLoss
from optireduce.safeguard import Safeguard, Verdict
from optireduce.simulation import Doom, Link, Network, Operation, Pause, Port, Simulation


def verdict(lost: float, step: int = 0, non_finite: tuple[int, ...] = (), sender: int = 1) -> Verdict:
    from_rank = tuple(lost if rank == sender else 0.0 for rank in range(4))
    return Verdict(step, lost, (lost * 4, 0.0, 0.0, 0.0), from_rank, non_finite)


def test_a_step_that_lost_little_is_taken() -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    assert all(safeguard.may_step(verdict(0.5), {}) for _ in range(10))
    assert safeguard.skipped_steps == 0


def test_steps_that_lost_much_are_skipped_and_end_training_when_they_do_not_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    with caplog.at_level(logging.WARNING, "optireduce"):
        assert not safeguard.may_step(verdict(0.6, step=7), {})
    assert "step 7 lost 60.0 %" in caplog.text
    assert not safeguard.may_step(verdict(0.6), {})
    assert safeguard.may_step(verdict(0.1), {})  # the row is broken
    assert not safeguard.may_step(verdict(0.6), {})
    assert not safeguard.may_step(verdict(0.6), {})
    with pytest.raises(TrainingHaltedError) as raised:
        safeguard.may_step(verdict(0.6, sender=2), {2: PeerLoss(100, 23)})
    assert raised.value.ranks == (2,)
    text = str(raised.value)
    assert "3 steps in a row lost more than skip_above = 50%" in text
    assert "on the way from rank 2;" in text
    assert "missing on rank 0." in text
    assert "from rank 2 123 bytes" in text
    assert safeguard.skipped_steps == 5


def test_who_sends_no_numbers_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    safeguard = Safeguard(skip_above=0.5, halt_after=3)
    with caplog.at_level(logging.WARNING, "optireduce"):
        for step in range(3):
            assert safeguard.may_step(verdict(0.0, step=step, non_finite=(3,)), {})
    assert [record.message for record in caplog.records] == ["step 0: infinities or NaNs came from rank 3"]


RANKS, ELEMENTS = 8, 4_000


def test_all_ranks_decide_the_same_in_a_thousand_faulty_steps() -> None:
    """Losses that no repair can save, packet loss, delay spikes, and ranks that stand still."""
    pauses = [Pause(rank % RANKS, 0.5 * rank, 0.5 * rank + 0.02) for rank in range(1, 60)]
    network = Network(
        RANKS,
        seed=5,
        link=Link(loss=0.02, spike=0.001, jitter_seconds=20e-6),
        egress=Port(1e9),
        ingress=Port(1e9, 256 * 1024),
        doom=Doom("bursts", 0.3, burst_packets=4, least_elements=ELEMENTS),
        payload_bytes=256,
        pauses=pauses,
        warmup_operations=20,
    )
    simulation = Simulation(network)
    rng = np.random.default_rng(0)
    skipped = 0
    for step in range(1_000):
        gradients = [rng.standard_normal(ELEMENTS).astype(np.float32) for _ in range(RANKS)]
        reports = simulation.all_reduce(gradients, "mean", bounded=True)
        statements = [np.zeros(3 * RANKS, np.float32) for _ in range(RANKS)]
        for rank, report in enumerate(reports):
            assert report is not None
            statements[rank][rank] = report.lost_bytes / report.bytes
        [told] = simulation.run(
            [Operation(statements, "mean", bounded=True, patience_bytes=gradients[0].nbytes)]
        )
        assert all(report is not None and report.reduced_lost_bytes == 0 for report in told), step
        decisions = {float(statement[:RANKS].sum()) > 0.45 for statement in statements}
        assert len(decisions) == 1, step
        skipped += True in decisions
    assert 100 < skipped < 900


def test_what_is_said_about_a_step_reaches_all_ranks_however_differently_they_end_it() -> None:
    """Without repair some ranks see the end of a gradient at once, and others wait for it in vain."""
    ranks, steps = 3, 400
    network = Network(
        ranks,
        seed=7,
        link=Link(loss=0.1),
        egress=Port(1e9),
        ingress=Port(1e9, 256 * 1024),
        payload_bytes=512,
        repair=False,
        warmup_operations=5,
    )
    run = []
    for step in range(steps):
        gradients = [np.ones(8_000, np.float32) for _ in range(ranks)]
        statements = [np.ones(3 * ranks, np.float32) for _ in range(ranks)]
        run += [
            Operation(gradients, "mean", bounded=True, follows_seconds=0.001 if step else None),
            Operation(
                statements,
                "mean",
                bounded=True,
                follows_seconds=0.0,
                patience_bytes=gradients[0].nbytes,
                repairs=True,
            ),
        ]
    reports = Simulation(network).run(run)
    ended = [[report.closed_by for report in row if report is not None] for row in reports[::2]]
    assert sum(len(set(row)) > 1 for row in ended) > 20
    for step, told in enumerate(reports[1::2]):
        assert all(report is not None and report.reduced_lost_bytes == 0 for report in told), step
