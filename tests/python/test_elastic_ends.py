"""Jobs that have ended or lost too many ranks, and what changes nothing in a group that trains. Real
processes; the test serves the store."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest
from elastic_job import Job
from ranks import LIMIT_SECONDS, free_port
from test_elastic import check_alike

from optireduce.elastic.board import Board
from optireduce.elastic.entrance import peers_of
from optireduce.elastic.record import Record
from optireduce.rendezvous import TcpStore
from optireduce.snapshot.channel import ChannelError
from optireduce.snapshot.requests import Peers

SIZE = 3
SOON = {"connect_timeout_seconds": 2.0, "quorum_seconds": 3.0}


@pytest.fixture
def store() -> Iterator[TcpStore]:
    served = TcpStore("127.0.0.1", free_port(), serve=True)
    yield served
    served.close()


def job_at(store: TcpStore, size: int = SIZE) -> Job:
    return Job(size, port=store.port, serves=False, config=SOON)


def test_a_process_that_comes_when_all_others_have_finished_is_told(store: TcpStore) -> None:
    with job_at(store) as job:
        for process in job.ranks:
            process.at_step(20)
        job.ranks[1].kill()
        for process in job.others(1):
            process.order(end=150)
        for process in job.others(1):
            process.result()
        kind, text = job.start(1).error()
    assert kind == "GroupFinished"
    assert "all other ranks have finished" in text


def test_a_job_that_was_killed_in_full_begins_anew_at_its_store(store: TcpStore) -> None:
    with job_at(store) as job:
        for process in job.ranks:
            process.at_step(20)
        for process in job.ranks:
            process.kill()
    with job_at(store) as job:
        assert [process.begun()["begun"] for process in job.ranks] == [0] * SIZE
        for process in job.ranks:
            process.at_step(20)
        check_alike(job.end())


def test_a_group_that_lost_its_majority_ends_and_forms_again(store: TcpStore) -> None:
    """The processes that were started again wait for the last of the old ones, which ends with an error."""
    with job_at(store) as job:
        for process in job.ranks:
            process.at_step(20)
        for rank in (1, 2):
            job.ranks[rank].kill()
        job.ranks[1:] = [job.start(rank) for rank in (1, 2)]
        kind, text = job.ranks[0].error()
        assert kind == "RuntimeError"
        assert "only 1 of 3 ranks are heard, too few to go on" in text
        job.ranks[0] = job.start(0)
        assert [process.begun()["begun"] for process in job.ranks] == [0] * SIZE
        for process in job.ranks:
            process.at_step(20)
        check_alike(job.end())


def test_a_second_process_of_a_rank_that_runs_stays_out(store: TcpStore) -> None:
    with job_at(store) as job:
        for process in job.ranks:
            process.at_step(20)
        kind, text = job.start(2, timeout=4.0).error()
        assert kind == "ConnectError"
        assert "another process of rank 2 runs" in text
        results = job.end()
    check_alike(results)
    assert all(result["stats"]["incarnation"] == 0 for result in results)
    assert all(result["events"] == [] for result in results)


def test_forged_and_stale_entries_change_nothing(store: TcpStore) -> None:
    with job_at(store) as job:
        for process in job.ranks:
            process.at_step(20)
        job.restart(2, after=lambda: job.trained_on(2))
        job.whole()
        board = Board(store, "test")
        record = Record.of(board.peek("record"))
        assert [entry.incarnation for entry in record.ranks] == [0, 0, 1]
        strange = dataclasses.replace(record.ranks[2], ports=(9, 9, 0), door=9)
        stale = dataclasses.replace(strange, incarnation=0)
        peers = peers_of(record, 2)
        for entry, session in ((strange, record.session), (stale, record.session), (stale, "other")):
            request = {"ask": "join", "session": session, "entry": entry.to_json()}
            for peer in (0, 1):
                assert peers.ask(peer, request)["accepted"] is False
                with pytest.raises((ChannelError, OSError)):
                    Peers(2, bytes(32), peers.doors).ask(peer, request)
                with pytest.raises((ChannelError, OSError)):
                    peers.ask(peer, request | {"entry": [1, 2]})
        forged = record.with_entry(0, dataclasses.replace(strange, incarnation=7, ports=(0, 9, 9)))
        for written in (forged.to_json(), {"session": 1}, [], forged.to_json() | {"session": "other"}):
            board.put("record", written)
            for process in job.ranks:
                process.advanced(60)  # longer than members look away from the store
        _wait_for(board, record)
        job.whole()
        results = job.end()
    check_alike(results)
    for result in results[:2]:
        assert result["stats"]["joins_accepted"] == 1
        assert result["stats"]["joins_refused"] >= 6
        assert result["stats"]["snapshot_refused_connections"] >= 3
        assert [event[1] for event in result["events"] if event[0] == 2] == ["removed", "returned"]


def _wait_for(board: Board, record: Record) -> None:
    """Members write it again over what is not theirs."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while board.peek("record") != record.to_json():
        assert time.monotonic() < deadline
        time.sleep(0.05)
