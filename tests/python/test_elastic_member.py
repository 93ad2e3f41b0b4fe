"""What members of an elastic group believe about each other's processes, and what they keep in the store."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from ranks import LIMIT_SECONDS, MemoryStore
from test_elastic_record import RANKS, entry_of, record_of

from optireduce import ConnectError
from optireduce.elastic import keeper
from optireduce.elastic.board import Board
from optireduce.elastic.keeper import Keeper
from optireduce.elastic.meeting import _Mover
from optireduce.elastic.member import Member
from optireduce.elastic.record import Entry, Record
from optireduce.snapshot.requests import Peers, Refused


class Ranks:
    """Members that ask each other directly. A rank that is not there does not answer."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.moves: list[tuple[int, int, int]] = []  # at whom, which rank, which process
        self.asked: list[tuple[int, int]] = []

    def add(self, rank: int, record: Record) -> Member:
        def move(other: int, entry: Entry) -> None:
            if entry.door == 1:
                raise ValueError("cannot be reached")
            self.moves.append((rank, other, entry.incarnation))

        self.members[rank] = Member(rank, record, lambda: "training", move)
        return self.members[rank]

    def keeper(self, rank: int, store: Any = None) -> Keeper:
        peers = _Peers(rank, b"", {other: ("", 0) for other in range(RANKS) if other != rank})
        object.__setattr__(peers, "ranks", self)
        return Keeper(Board(store or MemoryStore(), "job"), self.members[rank], peers)


class _Peers(Peers):
    ranks: Ranks

    def ask(self, peer: int, request: dict[str, Any], body: memoryview | None = None) -> dict[str, Any]:
        self.ranks.asked.append((self.rank, peer))
        there, ours = self.ranks.members.get(peer), self.ranks.members[self.rank]
        if there is None or ours.record.ranks[peer].incarnation != there.record.ranks[peer].incarnation:
            raise Refused(str(peer))  # the door that we know is that of an earlier process
        return self.ranks.members[peer].about_join(self.rank, request)


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def joins(member: Member, entry: Entry, rank: int = 2, session: str = "s") -> bool:
    found = member.about_join(rank, {"session": session, "entry": entry.to_json()})
    assert found["record"] == member.record.to_json()
    return bool(found["accepted"])


def test_only_a_later_process_takes_the_place_of_the_one_before(ranks: Ranks) -> None:
    member = ranks.add(0, record_of(0, 0, 2))
    moved = dataclasses.replace(entry_of(2, 3), address="10.0.0.9")
    assert not joins(member, entry_of(2, 1))
    assert not joins(member, dataclasses.replace(entry_of(2, 2), door=5))  # the same number, another process
    assert not joins(member, moved, session="other")
    assert not joins(member, entry_of(0, 9), rank=0)
    assert (ranks.moves, member.record) == ([], record_of(0, 0, 2))
    assert joins(member, moved)
    assert joins(member, moved)  # it asks again: the answer was lost
    assert ranks.moves == [(0, 2, 3)]
    assert member.record == record_of(0, 0, 2).with_entry(2, moved)
    assert (member.counts.accepted, member.counts.refused) == (2, 4)


@pytest.mark.parametrize("request_", [{}, {"session": "s"}, {"session": "s", "entry": 3}])
def test_what_is_no_request_is_refused_and_counted(ranks: Ranks, request_: dict[str, Any]) -> None:
    member = ranks.add(0, record_of(0, 0, 0))
    with pytest.raises((KeyError, ValueError)):
        member.about_join(1, request_)
    assert member.counts.refused == 1


def test_a_process_that_cannot_be_reached_is_not_believed(ranks: Ranks) -> None:
    member = ranks.add(0, record_of(0, 0, 0))
    with pytest.raises(ValueError, match="cannot be reached"):
        joins(member, dataclasses.replace(entry_of(2, 1), door=1))
    assert member.record == record_of(0, 0, 0)


def test_a_process_tells_all_ranks_until_all_have_heard_it(ranks: Ranks) -> None:
    """Rank 1 is restarted at the same time: where its new process is, rank 0 knows."""
    ranks.add(0, record_of(0, 0, 0))
    ranks.add(2, record_of(0, 0, 1))
    tells = ranks.keeper(2)
    tells.announce()
    assert ranks.members[2].untold() == [1]
    assert ranks.members[0].record == record_of(0, 0, 1)
    ranks.add(1, record_of(0, 1, 0))  # it does not know of us
    joins(ranks.members[0], entry_of(1, 1), rank=1)
    tells.announce()  # hears of it
    tells.announce()
    for rank in range(RANKS):
        assert ranks.members[rank].record == record_of(0, 1, 1), rank
    assert ranks.members[2].untold() == []
    before = len(ranks.asked)
    tells.announce()
    assert len(ranks.asked) == before


def test_those_that_formed_the_group_have_nothing_to_tell(ranks: Ranks) -> None:
    ranks.add(0, record_of(0, 0, 0))
    ranks.keeper(0).announce()
    assert ranks.asked == []


def test_a_process_that_was_replaced_notices_and_keeps_silent(ranks: Ranks) -> None:
    member = ranks.add(2, record_of(0, 0, 1))
    ranks.add(0, record_of(0, 0, 2))
    store = MemoryStore()
    tells = ranks.keeper(2, store)
    tells.announce()
    assert member.is_replaced
    assert member.record.ranks[2].incarnation == 1
    tells.stop(finished=True)
    assert store.values() == []


def test_the_engine_and_the_snapshots_follow_a_rank() -> None:
    calls: list[tuple[Any, ...]] = []

    class Follower:
        def redirect(self, *where: Any) -> None:
            calls.append(("engine", *where))
            if where[1] == "10.0.0.9":
                raise RuntimeError("no route")

        def move(self, *where: Any) -> None:
            calls.append(("snapshots", *where))

    follower: Any = Follower()
    mover = _Mover(0, follower, follower)
    entry = entry_of(2, 1)
    mover(2, entry)
    assert calls == [
        ("engine", 2, entry.address, entry.ports[0]),
        ("snapshots", 2, entry.address, entry.door),
    ]
    with pytest.raises(ValueError, match=r"rank 2 cannot be reached at 10\.0\.0\.9: no route"):
        mover(2, dataclasses.replace(entry, address="10.0.0.9"))
    assert len(calls) == 3


class Watched(MemoryStore):
    """Tells when the members have looked, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Semaphore(0)
        self.is_away = False

    def wait(self, keys: list[str], timeout: Any) -> None:
        self.looked.release()
        if self.is_away:
            raise ConnectError("nobody there")
        super().wait(keys, timeout)

    def look_twice(self) -> None:
        """What was found in the first look has been dealt with before the second."""
        while self.looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.looked.acquire(timeout=LIMIT_SECONDS)


def test_the_store_holds_what_the_members_know(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 0.005)
    ours = record_of(0, 1, 0)
    ranks.add(0, ours)
    store = Watched()
    board = Board(store, "job")
    kept = ranks.keeper(0, store)
    kept.start()
    try:
        for found in (None, [], {"session": 1}, record_of(0, 0, 9), record_of(9, 9, 9, session="t")):
            board.put("record", found.to_json() if isinstance(found, Record) else found)
            store.look_twice()
            assert board.peek("record") == ours.to_json()
        newer = record_of(0, 2, 1).to_json()  # another member knows more: it tells us in another way
        board.put("record", newer)
        store.look_twice()
        assert board.peek("record") == newer
        assert ranks.members[0].record == ours
        store.is_away = True
        store.look_twice()
        store.look_twice()
        told = [record for record in caplog.records if "does not answer" in record.message]
        assert len(told) == 1
        store.is_away = False
        board.put("record", None)
        store.look_twice()
        assert board.peek("record") == ours.to_json()
    finally:
        kept.stop(finished=True)
    assert kept.has_finished(0)
    assert not kept.has_finished(1)
