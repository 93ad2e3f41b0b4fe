"""The check of parameters: what is hashed, and what is said when ranks differ."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine
from ranks import LOOPBACK
from test_training_loops import both
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import process_group

import optireduce
from optireduce.check.compare import ParameterDifference, measured, sides_of
from optireduce.check.parameters import ParameterCheck
from optireduce.check.shelf import Shelf
from optireduce.check.slices import ParameterSlices
from optireduce.snapshot.requests import Peers

NOBODY = Peers(0, b"", {})


class Mixed(nn.Module):
    """Parameters of several types and layouts, of which no slice ends at a whole one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Parameter(torch.randn(1001))
        self.short = nn.Parameter(torch.randn(333, 7, dtype=torch.bfloat16))
        self.image = nn.Conv2d(40, 50, 7).to(memory_format=torch.channels_last)
        self.wide = nn.Parameter(torch.randn(100_003, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)


def all_of(slices: ParameterSlices) -> list[int | None]:
    return [slices.fingerprint(index) for index in range(slices.count)]


def test_slices_cover_every_value_once_and_are_about_equally_large() -> None:
    model = Mixed()
    slices = ParameterSlices(model)
    assert slices.count > 8
    pieces = [piece for index in range(slices.count) for piece in slices.pieces(index)]
    for name, parameter in model.named_parameters():
        runs = [(piece.begin, piece.end) for piece in pieces if piece.name == name]
        assert [0, *(end for _, end in runs)] == [*(begin for begin, _ in runs), parameter.numel()]
    sizes = [sum(piece.bytes for piece in slices.pieces(index)) for index in range(slices.count)]
    assert max(sizes) - min(sizes) < 64
    assert [slices.index(step) for step in (0, slices.count, slices.count + 2)] == [0, 0, 2]
    large = nn.Linear(2048, 4096)
    assert ParameterSlices(large).count == 64
    assert ParameterSlices(nn.Linear(2, 2)).count == 1


def test_one_bit_changes_the_fingerprint_of_its_slice_and_of_no_other() -> None:
    model = Mixed()
    slices = ParameterSlices(model)
    before = all_of(slices)
    assert None not in before
    for parameter in model.parameters():
        bits = torch.empty(0, dtype=torch.int16).set_(parameter.untyped_storage())
        for position in (0, bits.numel() // 2, bits.numel() - 1):
            bits[position] ^= 1
            changed = [now != then for now, then in zip(all_of(slices), before, strict=True)]
            assert sum(changed) == 1
            bits[position] ^= 1
    assert all_of(slices) == before
    assert all_of(ParameterSlices(Mixed())) == before


def test_parameters_that_ddp_ignores_or_that_are_not_in_memory_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
    model.parameters_to_ignore = {"0.weight"}  # type: ignore[assignment]
    names = [piece.name for piece in ParameterSlices(model).pieces(0)]
    assert names == ["0.bias", "1.weight", "1.bias"]


def test_a_parameter_that_was_replaced_is_noticed() -> None:
    model = nn.Linear(3, 3)
    slices = ParameterSlices(model)
    model.weight = nn.Parameter(torch.zeros(3, 3))
    assert slices.fingerprint(0) is None
    assert slices.copy(0) is None
    check, engine = checked()
    check.before_forward(model, 0)
    model.weight = nn.Parameter(torch.ones(3, 3))
    check.before_forward(model, 1)
    assert engine.hashes[1] == ParameterSlices(model).fingerprint(0) != engine.hashes[0]


def test_sides_are_ranks_with_equal_hashes_and_the_majority_is_right() -> None:
    assert sides_of([(0, 5), (1, 6), (2, 5)]) == ((0, 2), (1,))
    assert ParameterDifference(3, ((0, 2), (1,))).ranks == (1,)
    assert ParameterDifference(3, ((0, 2), (1,))).partner_of(1) == 0
    assert ParameterDifference(3, ((0, 2), (1,))).partner_of(2) == 1
    assert ParameterDifference(3, ((0,), (1,))).ranks == ()
    assert ParameterDifference(3, ((0, 1), (2,), (3,))).ranks == ()
    assert ParameterDifference(3, ((0, 1, 4), (2,), (3,))).ranks == (2, 3)


def test_the_size_of_a_difference_is_told_by_value() -> None:
    ours, theirs = Mixed(), Mixed()
    with torch.no_grad():
        ours.first[3] += 0.25
        ours.short[2, 2] = 8.0
        theirs.short[2, 2] = 4.0
        ours.short[2, 3] = float("nan")
    slices, others = ParameterSlices(ours), ParameterSlices(theirs)
    here, there = slices.copy(0), others.copy(0)
    assert here is not None
    assert there is not None
    found = measured(ParameterDifference(1, ((0,), (1,))), slices.pieces(0), here, there)
    assert found.parameters == ("first", "short")
    assert found.values == 3
    assert found.looked_at == sum(piece.end - piece.begin for piece in slices.pieces(0))
    assert found.largest == float("inf")  # not a number
    with torch.no_grad():
        theirs.short[2, 3] = float("nan")
    there = others.copy(0)
    assert there is not None
    found = measured(ParameterDifference(1, ((0,), (1,))), slices.pieces(0), here, there)
    assert (found.values, found.largest) == (2, 4.0)


def checked(is_on: bool = True) -> tuple[ParameterCheck, FakeEngine]:
    engine: Any = FakeEngine()
    return ParameterCheck(engine, is_on=is_on, max_lag=2, shelf=Shelf(), peers=NOBODY), engine


def test_a_difference_is_told_once_until_the_ranks_agree_again(caplog: pytest.LogCaptureFixture) -> None:
    check, engine = checked()
    model = nn.Linear(3, 3)
    equal, odd = [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 2), (2, 1)]

    def run(first: int, *rounds: list[tuple[int, int]]) -> list[str]:
        caplog.clear()
        for step, hashes in enumerate(rounds, first):
            engine.settled = [(step, hashes)]
            check.before_forward(model, step + 1)
        for step in range(first + len(rounds) + 1, first + len(rounds) + 7):
            check.before_forward(model, step)
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.WARNING, "optireduce"):
        assert run(0, equal) == []
        told = "the parameters of rank 1 differ from those of ranks 0, 2 (found before step 10)"
        assert run(10, odd, odd, [(0, 1), (1, 2)], odd) == [told]
        assert run(20, odd) == []
        assert run(30, [(0, 1)]) == []  # nobody was heard
        assert run(40, equal) == ["the parameters of all ranks are equal again (step 40)"]
        assert run(50, odd) == [told.replace("10", "50")]
    stats = check.stats()
    assert (stats["parameter_checks"], stats["parameter_differences"]) == (8, 6)


def test_what_is_not_told_yet_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    check, engine = checked()
    engine.settled = [(0, [(0, 1), (1, 2)])]
    with caplog.at_level(logging.WARNING, "optireduce"):
        check.before_forward(nn.Linear(3, 3), 1)
        assert not caplog.records
        check.close()
        check.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the parameters of rank 0 and of rank 1 differ (found before step 0)"
    ]


def test_nothing_is_hashed_when_it_is_off_or_the_step_is_the_same() -> None:
    check, engine = checked(is_on=False)
    check.before_forward(nn.Linear(3, 3), 0)
    assert not engine.hashes
    check, engine = checked()
    model = nn.Linear(3, 3)
    check.before_forward(model, 0)
    first = engine.hashes.pop(0)
    with torch.no_grad():
        model.weight.add_(1.0)
    check.before_forward(model, 0)  # the second forward pass of an accumulated step
    assert not engine.hashes
    check.before_forward(model, 1)
    assert engine.hashes[1] != first


# ---- Real processes


def trains(
    rank: int, size: int, directory: str, changes: dict[int, int], options: dict[str, Any]
) -> dict[str, Any]:
    """``changes``: the step before which a rank's parameter is changed."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("optireduce")
    logger.addHandler(handler)
    label = "-".join(map(str, [*options, *changes]))
    try:
        with process_group("gloo", rank, size, directory, label=label):
            torch.manual_seed(3)
            layers = [nn.Linear(64, 64) for _ in range(3)]
            model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            config = optireduce.Config(**{**vars(LOOPBACK), **options})
            session = optireduce.attach(model, config, optimizer=optimizer)
            for step in range(40):
                torch.manual_seed(step * size + rank)
                optimizer.zero_grad()
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()
                if changes.get(rank) == step:
                    with torch.no_grad():
                        model.module[1].weight[3, 5] += 0.5
                        optimizer.state[model.module[2].bias]["momentum_buffer"][7] += 1.0
            stats = session.stats()
            session.close()
            return {
                "told": told,
                "stats": stats,
                "difference": session.parameter_difference,
                "bits": both(model, optimizer),
            }
    finally:
        logger.removeHandler(handler)


def test_a_changed_value_is_told_on_all_ranks_with_rank_and_size(
    on_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    for found in on_ranks(3, trains, {1: 10}, {}):
        difference = found["difference"]
        assert difference.ranks == (1,)
        assert found["stats"]["mended_differences"] == 0
        assert difference.sides == ((0, 2), (1,))
        assert difference.parameters == ("1.weight", "2.bias")  # the optimizer changes this one
        assert (difference.values, difference.looked_at) == (2, 3 * 65 * 64)
        assert difference.largest == pytest.approx(0.5, abs=0.1)
        assert [text for text in found["told"] if "differ" in text] == [str(difference)]
        assert found["stats"]["parameter_differences"] > 10


def test_of_two_ranks_nobody_can_say_which_is_wrong(on_ranks: Callable[..., list[Any]]) -> None:
    for found in on_ranks(2, trains, {1: 10}, {}):
        assert found["difference"].ranks == ()
        assert found["difference"].largest == pytest.approx(0.5, abs=0.1)


def test_equal_ranks_are_compared_and_say_nothing(on_ranks: Callable[..., list[Any]]) -> None:
    for found in on_ranks(3, trains, {}, {}):
        assert found["stats"]["parameter_checks"] > 20
        assert found["stats"]["parameter_differences"] == 0
        assert found["difference"] is None
    for found in on_ranks(2, trains, {1: 10}, {"check_parameters": False}):
        assert found["stats"]["parameter_checks"] == 0
        assert found["difference"] is None


def test_a_rank_that_differs_takes_over_the_state_of_most(on_ranks: Callable[..., list[Any]]) -> None:
    found = on_ranks(3, trains, {1: 10}, {"mend_differences": True})
    for result in found:
        assert result["bits"] == found[0]["bits"]  # optimizer state, too
        assert result["difference"].ranks == (1,)
        assert len([text for text in result["told"] if "differ" in text]) == 1
        assert [text for text in result["told"] if "equal again" in text]
    assert [result["stats"]["mended_differences"] for result in found] == [0, 1, 0]
    assert [result["stats"]["snapshots_given"] for result in found] == [1, 0, 1]


def test_without_a_majority_nothing_is_mended(on_ranks: Callable[..., list[Any]]) -> None:
    found = on_ranks(2, trains, {1: 10}, {"mend_differences": True})
    assert [result["stats"]["mended_differences"] for result in found] == [0, 0]
    assert found[0]["bits"] != found[1]["bits"]
