"""Which parts of a model are sent again when, and how pieces of its tensors are read and replaced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optireduce.replica import Replica
from optireduce.resync_windows import ResyncWindows


@given(
    elements=st.integers(1, 5_000),
    ranks=st.integers(1, 9),
    steps=st.integers(1, 60),
    least=st.integers(1, 50),
)
@settings(deadline=None)  # of a busy machine it would tell nothing else
def test_every_element_is_visited_once_a_round(elements: int, ranks: int, steps: int, least: int) -> None:
    windows = ResyncWindows(elements, ranks, steps, least)
    step = 0
    for _ in range(3):
        begin, expected = step, 0
        while expected < elements:  # windows follow each other
            window = windows.window(step)
            assert window.start == expected < window.stop
            assert window.stop - window.start <= windows.size
            expected = window.stop
            step += 1
        assert step - begin == windows.count <= steps
    assert windows.size % ranks == 0


def test_a_round_is_never_longer_than_asked_for() -> None:
    windows = ResyncWindows(elements=1_000_000, ranks=8, steps=3)
    assert [step for step in range(9) if windows.window(step).start == 0] == [0, 3, 6]


def test_a_quarter_of_a_percent_of_the_traffic() -> None:
    """An all-reduce moves every word twice, a resync once."""
    windows = ResyncWindows(elements=1_000_000, ranks=8, steps=200)
    assert windows.size / (2 * windows.elements) == pytest.approx(0.0025)


def test_windows_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="steps = 0 is not usable"):
        ResyncWindows(10, 2, 0)


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(3, 5, generator=generator),
        torch.randn(7, generator=generator).to(torch.bfloat16),
        torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        torch.randn(6, 4, generator=generator).t(),
        torch.randn(3, dtype=torch.float64, generator=generator),
        torch.arange(5),
        torch.randn((), generator=generator),
    ]


@given(part=st.integers(1, 40))
def test_pieces_make_up_the_whole(part: int) -> None:
    source, target = tensors(), [torch.zeros_like(tensor) for tensor in tensors()]
    replica, copy = Replica(source), Replica(target)
    for begin in range(0, replica.words, part):
        window = slice(begin, min(begin + part, replica.words))
        words = torch.zeros(part, dtype=torch.float64)
        versions = replica.read(window, words)
        copy.write(window, words, versions)
    for mine, theirs in zip(source, target, strict=True):
        assert torch.equal(mine, theirs)


def test_only_the_window_changes_and_the_difference_is_told() -> None:
    mine = [torch.zeros(100), torch.full((100,), 3.0)]
    replica = Replica(mine)
    words = torch.full((10,), 0.0, dtype=torch.float64)
    words.view(torch.float32)[:] = 7.0
    window = slice(45, 55)  # the last 10 of one tensor, the first 10 of the next
    versions = replica.read(window, torch.zeros(10, dtype=torch.float64))
    found = replica.write(window, words, versions)
    assert mine[0].tolist() == [0.0] * 90 + [7.0] * 10
    assert mine[1].tolist() == [7.0] * 10 + [3.0] * 90
    assert found.difference == 10 * 7.0**2 + 10 * 4.0**2
    assert found.size == 10 * 3.0**2


def test_a_parameter_that_has_changed_since_keeps_its_value_and_a_buffer_does_not() -> None:
    parameter, buffer = torch.nn.Parameter(torch.zeros(4)), torch.zeros(4)
    replica = Replica([parameter, buffer])
    words = torch.zeros(4, dtype=torch.float64)
    versions = replica.read(slice(0, 4), words)
    with torch.no_grad():
        parameter.add_(1.0)
        buffer.add_(1.0)
        replica.write(slice(0, 4), words, versions)
    assert parameter.tolist() == [1.0] * 4
    assert buffer.tolist() == [0.0] * 4


def test_tensors_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="has gaps in memory"):
        Replica([torch.zeros(4, 4)[:, :2]])
