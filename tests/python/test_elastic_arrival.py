"""Processes that start: they form a group when all are there, or join the one that runs. Threads, and a group
that answers as a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ranks import MemoryStore, outcomes, results
from test_elastic_record import record_of

from optireduce import ConfigError, ConnectError, GroupFinished
from optireduce.elastic import arrival
from optireduce.elastic.arrival import Arrival, Survey
from optireduce.elastic.board import Board, BoardAway
from optireduce.elastic.record import Record

SIZE = 3
RUNNING = record_of(0, 0, 0)
Ask = Callable[[Record], Survey]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "_ROUND_SECONDS", 0.005)
    monkeypatch.setattr(arrival, "_SURVEY_SECONDS", 0.0)


def nobody(record: Record) -> Survey:
    return Survey(record, frozenset(), False)


def answers(*ranks: int, twin: bool = False) -> Ask:
    return lambda record: Survey(record, frozenset(ranks), twin)


def arriving(store: Any, rank: int, size: int = SIZE, ask: Ask = nobody, patience: float = 60.0) -> Arrival:
    return Arrival(Board(store, "job"), rank, size, ask, patience)


def left_over(store: MemoryStore, *finished: int) -> None:
    """By a group that ran here before."""
    results(SIZE, lambda rank: arriving(store, rank).wait(60.0))
    board = Board(store, "job")
    board.put("record", RUNNING.to_json())
    for rank in finished:
        board.put(f"{RUNNING.session}/finished/{rank}", True)


def test_a_group_forms_when_everybody_is_there() -> None:
    store = MemoryStore()
    attempts = results(SIZE, lambda rank: arriving(store, rank).wait(60.0))
    assert attempts == [attempts[0]] * SIZE
    assert attempts[0]


def test_a_job_that_starts_again_in_full_forms_another_group() -> None:
    """Whatever the store holds: what processes before them wrote is not taken for theirs."""
    store = MemoryStore()
    first = results(SIZE, lambda rank: arriving(store, rank).wait(60.0))
    left_over(store, 0, 1, 2)
    again = results(SIZE, lambda rank: arriving(store, rank).wait(60.0))
    assert again == [again[0]] * SIZE
    assert again[0] not in first


def test_a_process_joins_a_group_of_which_enough_answer() -> None:
    store = MemoryStore()
    left_over(store)
    for rank in range(SIZE):
        rest = [other for other in range(SIZE) if other != rank]
        assert arriving(store, rank, ask=answers(*rest)).wait(60.0) == RUNNING


@pytest.mark.parametrize(("training", "joins"), [((2,), False), ((2, 3), True)])
def test_half_of_a_group_is_enough(training: tuple[int, ...], joins: bool) -> None:
    store = MemoryStore()
    four = {
        **RUNNING.to_json(),
        "ranks": [entry | {"ports": [*entry["ports"], 5]} for entry in RUNNING.to_json()["ranks"]]
        + [RUNNING.to_json()["ranks"][0] | {"ports": [1, 2, 3, 0]}],
    }
    Board(store, "job").put("record", four)
    found = arriving(store, 0, size=4, ask=answers(*training))
    if joins:
        assert found.wait(60.0) == Record.of(four)
    else:
        with pytest.raises(ConnectError, match=r"only rank 2 answers.*start them again"):
            found.wait(0.2)


def test_a_process_that_joined_is_not_there_for_a_new_group() -> None:
    """The others would begin with it, and wait for it in vain."""
    store = MemoryStore()
    board = Board(store, "job")
    board.put("invitation", {"attempt": "a", "size": SIZE})
    waits = arriving(store, 1)
    with pytest.raises(ConnectError):
        waits.wait(0.1)
    assert board.peek("a/here/1")
    board.put("record", RUNNING.to_json())
    waits._survey = answers(0, 2)
    assert waits.wait(60.0) == RUNNING
    assert not board.peek("a/here/1")


def test_a_rank_0_that_joined_invites_nobody() -> None:
    store = MemoryStore()
    waits = arriving(store, 0)
    with pytest.raises(ConnectError, match=r"rank\(s\) 1, 2 did not come"):
        waits.wait(0.1)
    board = Board(store, "job")
    board.put("record", RUNNING.to_json())
    waits._survey = answers(1, 2)
    assert waits.wait(60.0) == RUNNING
    with pytest.raises(ConnectError, match="rank 0 did not come"):
        arriving(store, 1).wait(0.1)


def test_a_process_that_was_restarted_while_the_group_forms_is_the_one_that_counts() -> None:
    store = MemoryStore()

    def come(rank: int) -> Any:
        return arriving(store, rank).wait(60.0)

    board = Board(store, "job")
    board.put("invitation", {"attempt": "old", "size": SIZE})
    with pytest.raises(ConnectError):
        arriving(store, 1).wait(0.1)  # and dies
    attempts = results(SIZE, come)
    assert attempts == [attempts[0]] * SIZE
    assert attempts[0] != "old"


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_of_one_rank_are_told(rank: int) -> None:
    store = MemoryStore()
    if rank == 1:
        Board(store, "job").put("invitation", {"attempt": "a", "size": SIZE})
    found = outcomes(2, lambda _: arriving(store, rank).wait(1.0))
    texts = sorted(str(each) for each in found)
    assert all(isinstance(each, ConnectError) for each in found)
    assert any(f"another process has started as rank {rank} of job 'job'" in text for text in texts)


def test_a_process_of_a_rank_that_runs_waits_for_its_end() -> None:
    store = MemoryStore()
    left_over(store)
    waits = arriving(store, 1, ask=answers(0, 2, twin=True))
    with pytest.raises(ConnectError, match="another process of rank 1 runs; end it first"):
        waits.wait(0.1)
    waits._survey = answers(0, 2)
    assert waits.wait(60.0) == RUNNING


def test_another_size_is_told() -> None:
    store = MemoryStore()
    found = outcomes(
        2, lambda rank: arriving(store, rank, size=2 + rank, patience=0.05).wait(2.0 if rank == 0 else 60.0)
    )
    assert isinstance(found[1], ConfigError)
    assert "size = 3 on rank 1 and 2 on rank 0 of job 'job'" in str(found[1])


def test_a_group_of_another_size_is_not_joined() -> None:
    store = MemoryStore()
    left_over(store)
    with pytest.raises(ConnectError, match="the group that formed before has size 3, not 2"):
        arriving(store, 1, size=2, ask=answers(0)).wait(0.1)


def test_a_job_whose_other_ranks_have_finished_is_over() -> None:
    store = MemoryStore()
    left_over(store, 0, 2)
    with pytest.raises(GroupFinished) as caught:
        arriving(store, 1, patience=0.05).wait(60.0)
    assert caught.value.ranks == (0, 2)
    left_over(store, 1, 2)
    with pytest.raises(GroupFinished):
        arriving(store, 0, patience=0.05).wait(60.0)


def test_a_job_is_not_over_while_a_rank_may_come_back() -> None:
    store = MemoryStore()
    left_over(store, 2)  # rank 0 was killed
    with pytest.raises(ConnectError):
        arriving(store, 1, patience=0.0).wait(0.3)


def test_a_finished_job_that_is_started_again_by_others_is_not_over() -> None:
    store = MemoryStore()
    left_over(store, 0, 1, 2)
    found = outcomes(2, lambda rank: arriving(store, rank, patience=0.1).wait(0.5))
    assert isinstance(found[1], ConnectError)  # rank 0 has come, and waits for rank 2


class Away(MemoryStore):
    """A store that does not answer so many requests."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.left = requests

    def set(self, key: str, value: bytes) -> None:
        self.left -= 1
        if self.left >= 0:
            raise OSError("nobody there")
        super().set(key, value)

    def wait(self, keys: list[str], timeout: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            raise ConnectError("nobody there")
        super().wait(keys, timeout)


def test_a_store_that_is_away_is_waited_for() -> None:
    store = Away(10)
    attempts = results(SIZE, lambda rank: arriving(store, rank).wait(60.0))
    assert attempts == [attempts[0]] * SIZE
    with pytest.raises(ConnectError, match="the store does not answer: nobody there"):
        arriving(Away(10**9), 1).wait(0.1)


def test_what_others_wrote_is_nothing() -> None:
    store = MemoryStore()
    board = Board(store, "job")
    store.set("optireduce/elastic/job/record", b"{")
    assert board.peek("record") is None
    board.put("record", {"session": 1})
    board.put("invitation", "x")
    with pytest.raises(ConnectError, match="rank 0 did not come"):
        arriving(store, 1, ask=answers(0, 2)).wait(0.1)
    with pytest.raises(BoardAway):
        Board(Away(5), "job").peek("record")
