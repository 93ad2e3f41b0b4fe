"""Who gets a snapshot, what strangers get, and how a rank puts a state together from several donors."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from ranks import LIMIT_SECONDS

from optireduce import GroupFinished, LeftBehind
from optireduce.snapshot import channel, requests, returner, service
from optireduce.snapshot.channel import ChannelError, snapshot_key
from optireduce.snapshot.donor import Boundary, Donor, Wanted
from optireduce.snapshot.requests import Peers
from optireduce.snapshot.returner import Returner
from optireduce.snapshot.service import Service
from optireduce.snapshot.state import Image

KEY = snapshot_key(bytes(range(16)))
SIZE = 4  # ranks 1 to 3 train, rank 0 returns


def state(step: int, value: float = 0.0) -> Boundary:
    """Of every rank that trains, unless ``value`` is another."""
    tensors = [torch.full((7,), step + value), torch.arange(300_000)]
    return Boundary(Image.of(tensors, "it"), Image.of([torch.ones(3)], "it"), 10 * step, 77 + step, 0.0)


class Member:
    """A rank whose training thread is the test's, or one of its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.donor = Donor()
        self.service = Service("127.0.0.1", rank, SIZE, self.donor)
        self.service.begin(KEY)
        self.value = 0.0
        self.paused_for: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)

    def train(self) -> None:
        self._thread.start()

    def _train(self) -> None:
        """A step whenever somebody may have asked."""
        while not self._ended.wait(0.001):
            self.take_step()

    def take_step(self) -> None:
        self.donor.step += 1
        step = self.donor.step
        if self.donor.is_asked:
            self.paused_for += self.donor.capture(step, lambda: state(step, self.value))

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(LIMIT_SECONDS)
        self.service.close()


@pytest.fixture
def members() -> Iterator[dict[int, Member]]:
    found = {rank: Member(rank) for rank in range(1, SIZE)}
    yield found
    for member in found.values():
        member.close()


def peers_of(members: dict[int, Member], key: bytes = KEY, rank: int = 0) -> Peers:
    return Peers(rank, key, {n: ("127.0.0.1", member.service.port) for n, member in members.items()})


def fetch(members: dict[int, Member], seconds: float = LIMIT_SECONDS, pause: bool = False) -> Any:
    returner = Returner(peers_of(members), seconds, pause)
    found = returner.fetch()
    returner.release()
    return found


@contextmanager
def training(members: dict[int, Member]) -> Iterator[None]:
    for member in members.values():
        member.train()
    yield
    for member in members.values():
        member._ended.set()


def assert_whole(found: Any, value: float = 0.0) -> None:
    first, second = found.shared.value()
    assert first.tolist() == [found.step + value] * 7
    assert torch.equal(second, torch.arange(300_000))
    assert (found.completed, found.digest) == (10 * found.step, 77 + found.step)
    assert found.buffers.value()[0].tolist() == [1.0] * 3


def test_every_donor_sends_a_part(members: dict[int, Member]) -> None:
    with training(members):
        found = fetch(members)
    assert_whole(found)
    total = found.shared.size
    for member in members.values():
        assert member.donor.given == 1
        assert member.service.sent_bytes >= total // 3
        assert member.service.sent_bytes < total
        assert member.paused_for == []
        assert not member.donor._captures  # nothing stays in memory


def test_the_group_is_asked_to_pause(members: dict[int, Member]) -> None:
    with training(members):
        assert_whole(fetch(members, pause=True))
    assert all(set(member.paused_for) == {0} for member in members.values())


def test_a_capture_is_of_the_step_that_was_asked_for(members: dict[int, Member]) -> None:
    donor = members[1].donor
    donor.step = 5
    donor.ask(0, Wanted(5, 0, 1, False))
    assert not donor.is_asked  # too late for it
    donor.ask(0, Wanted(7, 0, 1, False))
    members[1].take_step()
    assert donor.is_asked
    members[1].take_step()
    answer = donor.ready(0)
    assert (answer["capture"]["step"], answer["waits"]) == (7, False)
    assert not donor.is_asked


def test_a_step_that_was_jumped_over_is_told(members: dict[int, Member]) -> None:
    donor = members[1].donor
    donor.ask(0, Wanted(7, 0, 1, False))
    donor.step = 7
    members[1].take_step()
    answer = donor.ready(0)
    assert (answer["capture"], answer["waits"], donor.is_asked) == (None, False, False)


def test_one_rank_with_another_state_is_left_out_and_named(
    members: dict[int, Member], caplog: pytest.LogCaptureFixture
) -> None:
    members[2].value = 0.5
    with training(members), caplog.at_level(logging.WARNING, "optireduce"):
        assert_whole(fetch(members))
    assert "the training state of rank 2 differs from that of most ranks" in caplog.text


def test_no_majority_is_an_error_that_names_the_sides(members: dict[int, Member]) -> None:
    for rank, member in members.items():
        member.value = rank / 8
    with training(members), pytest.raises(LeftBehind, match="rank 1 and rank 2 and rank 3 differ") as raised:
        fetch(members)
    assert raised.value.ranks == (1, 2, 3)


def test_a_donor_that_ends_in_the_middle_is_done_without(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its service ends when its part is asked for; the second attempt has two donors."""
    fetches = []
    original = Donor.piece

    def piece(donor: Donor, rank: int, name: str) -> Any:
        fetches.append(donor)
        if donor is members[3].donor:
            for connection in list(members[3].service._open.values()):
                connection.close()
            members[3].service._closed = True
            members[3].service._listener.close()
            return None
        return original(donor, rank, name)

    monkeypatch.setattr(Donor, "piece", piece)
    with training(members):
        assert_whole(fetch(members))
    assert members[3].donor in fetches


def test_everybody_has_finished(members: dict[int, Member]) -> None:
    members[1].donor.stop("finished")
    members[2].close()
    members[3].close()
    with pytest.raises(GroupFinished, match="all other ranks have finished") as raised:
        fetch(members)
    assert raised.value.ranks == (1, 2, 3)
    assert issubclass(GroupFinished, RuntimeError)


def test_members_that_finish_while_they_are_awaited(members: dict[int, Member]) -> None:
    """Nobody reaches the step that was asked for."""
    asked = threading.Event()

    def finish() -> None:
        for member in members.values():
            while not member.donor.is_asked:
                assert not asked.wait(0.001)
        for member in members.values():
            member.donor.stop("finished")

    threading.Thread(target=finish, daemon=True).start()
    with pytest.raises(GroupFinished):
        fetch(members)


def test_nobody_answers_in_time(members: dict[int, Member]) -> None:
    for member in members.values():
        member.donor.stop("left behind")
    with pytest.raises(LeftBehind, match=r"no snapshot .* within 0.3 s: no member answers"):
        fetch(members, seconds=0.3)


def test_members_that_never_reach_the_step(members: dict[int, Member]) -> None:
    with pytest.raises(LeftBehind, match=r"within 0.3 s"):
        fetch(members, seconds=0.3)


# --- Strangers -------------------------------------------------------------------------------------------


def refused_after(member: Member, count: int) -> None:
    """Wait until it has counted so many."""
    ended = threading.Event()
    for _ in range(int(LIMIT_SECONDS * 1000)):
        if member.service.refused >= count:
            break
        ended.wait(0.001)
    assert member.service.refused == count


def test_a_wrong_key_gets_nothing(members: dict[int, Member]) -> None:
    stranger = peers_of(members, key=snapshot_key(bytes(16)))
    with pytest.raises(ChannelError, match="does not know the group's secret"):
        stranger.ask(1, {"ask": "step"})
    refused_after(members[1], 1)
    assert peers_of(members).ask(1, {"ask": "step"}) == {"step": 0, "standing": "training"}
    assert members[1].service.refused == 1


def hello(magic: bytes = b"ORSNAP1\n", client: int = 0, server: int = 1) -> bytes:
    return struct.pack("!8sHH16s", magic, client, server, bytes(16))


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(100_000),
    "another magic": hello(magic=b"ORSNAP9\n") + bytes(32),
    "another rank": hello(server=2) + bytes(32),
    "no proof": hello() + bytes(32),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_dropped_and_counted(members: dict[int, Member], garbage: str) -> None:
    with socket.create_connection(("127.0.0.1", members[1].service.port), LIMIT_SECONDS) as stranger:
        answer = b""
        with contextlib.suppress(OSError):  # whenever it was closed
            stranger.sendall(GARBAGE[garbage])
            stranger.shutdown(socket.SHUT_WR)
            while part := stranger.recv(4096):
                answer += part
        assert len(answer) <= 48  # a nonce and a proof
    refused_after(members[1], 1)


def test_a_slow_stranger_is_dropped_in_time(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it trickles: the limit is for the whole greeting."""
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", members[1].service.port), LIMIT_SECONDS) as stranger:
        stranger.sendall(hello()[:5])
        assert stranger.recv(1) == b""  # it is closed, although we never ended
    refused_after(members[1], 1)


def test_strangers_leave_room_for_limited_threads_only(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CONNECT_SECONDS", LIMIT_SECONDS)
    members[1].service._most = 3
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", members[1].service.port)))
            for _ in range(8)
        ]
        refused_after(members[1], 5)
        assert len(members[1].service._open) == 3
        del connections


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"ask": "everything"},
        {"ask": "capture", "step": "x", "part": 0, "parts": 1, "pause": False},
        {"ask": "capture", "step": 9, "part": 2, "parts": 2, "pause": False},
        {"ask": "fetch", "piece": "part"},
        {"ask": "x" * requests.MOST_REQUEST_BYTES},
    ],
)
def test_a_bad_request_of_a_member_is_dropped_and_counted(
    members: dict[int, Member], request_: dict[str, Any]
) -> None:
    with pytest.raises((ChannelError, OSError)):
        peers_of(members).ask(1, request_)
    refused_after(members[1], 1)
    assert peers_of(members).ask(1, {"ask": "step"})["standing"] == "training"


@pytest.mark.parametrize("rank", [1, SIZE])
def test_only_other_ranks_of_the_group_are_served(members: dict[int, Member], rank: int) -> None:
    with pytest.raises((ChannelError, OSError)):
        peers_of(members, rank=rank).ask(1, {"ask": "step"})
    refused_after(members[1], 1)


def test_a_piece_that_is_not_there_is_told(members: dict[int, Member]) -> None:
    answer = peers_of(members).ask(1, {"ask": "fetch", "piece": "part", "bytes": 5}, memoryview(bytearray(5)))
    assert answer == {"gone": True}


def test_both_sides_must_prove_the_secret() -> None:
    """A wrong proof ends the connection before any message is read."""
    for answers in (True, False):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if answers:
                theirs.sendall(hello(server=1) + bytes(32))
                with pytest.raises(ChannelError, match="the client does not know the group's secret"):
                    channel.answer_greeting(ours, KEY, 1, LIMIT_SECONDS)
            else:
                theirs.sendall(bytes(48))
                with pytest.raises(ChannelError, match="the server does not know the group's secret"):
                    channel.greet(ours, KEY, 0, 1, LIMIT_SECONDS)


def test_a_message_longer_than_expected_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = channel.Channel(ours, KEY, b"server", 0)
        theirs.sendall(struct.pack("!I", 2**32 - 1))
        with pytest.raises(ChannelError, match="4294967295 bytes, at most 100"):
            receiver.receive(100, LIMIT_SECONDS)


def test_a_changed_or_repeated_message_is_refused() -> None:
    for attack in ("changed", "repeated", "reflected"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender = channel.Channel(theirs, KEY, b"client" if attack != "reflected" else b"server", 1)
            receiver = channel.Channel(ours, KEY, b"server", 0)
            sender.send(b"as it was", LIMIT_SECONDS)
            raw = bytearray(ours.recv(4096))
            if attack == "changed":
                raw[5] ^= 1
            theirs.sendall(raw * (2 if attack == "repeated" else 1))
            if attack == "repeated":
                assert receiver.receive(100, LIMIT_SECONDS) == b"as it was"
            with pytest.raises(ChannelError, match="wrong tag"):
                receiver.receive(100, LIMIT_SECONDS)


def test_the_key_is_in_no_text() -> None:
    assert repr(KEY) not in repr(Peers(0, KEY, {}))
    assert KEY.hex() not in repr(Peers(0, KEY, {}))


def test_close_ends_connections_that_are_open(members: dict[int, Member]) -> None:
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", members[1].service.port)) as stranger:
        stranger.sendall(hello())
        assert len(stranger.recv(48)) > 0
        members[1].close()
        members[1].close()
        assert threading.active_count() < before
    assert members[1].service.refused == 0


def test_a_forked_child_that_closes_leaves_the_parent_s_service_open(members: dict[int, Member]) -> None:
    if (child := os.fork()) == 0:
        members[1].service.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert peers_of(members).ask(1, {"ask": "step"})["standing"] == "training"


def test_an_interrupted_return_ends_its_threads(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(returner: Returner, in_parallel: Any) -> None:
        order = {"ask": "capture", "step": 10**9, "part": 0, "parts": 1, "pause": False}
        in_parallel(returner._captured, members, [order] * len(members))
        raise KeyboardInterrupt

    monkeypatch.setattr(Returner, "_attempt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(members, seconds=10_000.0)


def test_a_donor_that_never_captures_is_left_out(members: dict[int, Member]) -> None:
    members[2].donor.capture = lambda step, boundary: Donor.capture(  # type: ignore[method-assign]
        members[2].donor, step, lambda: None
    )
    with training(members):
        assert_whole(fetch(members))


def test_captures_that_nobody_fetches_are_forgotten(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = members[1].donor
    donor.ask(0, Wanted(1, 0, 1, False))
    members[1].take_step()
    assert donor._captures
    monkeypatch.setattr("optireduce.snapshot.donor._KEPT_SECONDS", -1.0)
    donor.forget_old()
    assert not donor._captures


def test_the_margin_grows_while_steps_are_too_fast(
    members: dict[int, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd and even ones, for loops with two gradient exchanges in an optimizer step."""
    seen: list[int] = []
    original = Returner._chosen_step

    def chosen(self: Returner, donors: dict[int, int]) -> int:
        seen.append(self._margin)
        step = original(self, donors)
        if len(seen) < 3:
            for member in members.values():
                member.donor.step = step
        return step

    monkeypatch.setattr(Returner, "_chosen_step", chosen)
    monkeypatch.setattr(returner, "_RETRY_SECONDS", 0.0)
    with training(members):
        assert_whole(fetch(members))
    assert seen[:3] == [2, 5, 11]
