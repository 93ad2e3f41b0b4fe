"""Whether a group multicasts: what is asked for, where it is tried, and what becomes of ranks that do not
hear each other. Between hosts: tests/lab."""

from __future__ import annotations

import ipaddress
import itertools
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ranks import LOOPBACK, MemoryStore, group_outcomes, group_results, outcomes

from optireduce import Communicator, Config, ConfigError, ConnectError, multicast
from optireduce.experiments.simulated_network import GroupOutage, Network
from optireduce.experiments.simulation import Simulation

REQUIRED = replace(LOOPBACK, multicast="on")


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("multicast", "yes", "one of 'off', 'on', 'auto'"),
        ("multicast", True, "one of 'off', 'on', 'auto'"),
        ("multicast_ttl", 0, "an integer from 1 to 255"),
        ("multicast_ttl", 256, "an integer from 1 to 255"),
        ("multicast_ttl", 1.0, "an integer from 1 to 255"),
    ],
)
def test_what_is_not_usable_is_named(field: str, value: Any, right: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = {value!r} is not usable: it must be {right}"):
        Config(**{field: value})


def test_it_is_off_unless_asked_for_also_by_the_environment() -> None:
    assert Config().multicast == "off"
    asked = Config.from_env({"OPTIREDUCE_MULTICAST": "auto", "OPTIREDUCE_MULTICAST_TTL": "4"})
    assert (asked.multicast, asked.multicast_ttl) == ("auto", 4)


@pytest.mark.parametrize("seed", [0, 1, 2**18 - 1, 2**31, 2**64 - 1])
def test_a_group_belongs_to_nobody_else(seed: int) -> None:
    narrow = ipaddress.IPv4Address(multicast.group_address(seed, "10.0.0.1"))
    assert narrow in ipaddress.IPv4Network("239.192.0.0/14")
    wide = ipaddress.IPv6Address(multicast.group_address(seed, "fd00::1"))
    assert wide in ipaddress.IPv6Network("ff15::/16")
    assert int(wide) & 0x80000000  # group IDs below are assigned (RFC 3307)


def test_groups_differ_from_session_to_session() -> None:
    assert len({multicast.group_address(seed, "10.0.0.1") for seed in range(100)}) == 100


@pytest.mark.parametrize(
    ("setting", "addresses", "wanted"),
    [
        ("off", ("10.0.0.1", "10.0.0.2", "10.0.0.3"), False),
        ("auto", ("10.0.0.1", "10.0.0.2", "10.0.0.3"), True),
        ("auto", ("10.0.0.1", "10.0.0.1", "10.0.0.2"), True),
        ("auto", ("10.0.0.1", "10.0.0.1", "10.0.0.1"), False),
        ("auto", ("10.0.0.1", "10.0.0.2"), False),
        ("on", ("127.0.0.1", "127.0.0.1"), True),
        ("on", ("127.0.0.1",), False),
    ],
)
def test_auto_tries_it_only_where_it_could_pay(
    setting: str, addresses: tuple[str, ...], wanted: bool
) -> None:
    assert multicast._is_wanted(setting, addresses) is wanted


def reduce(group: Communicator) -> dict[str, Any]:
    array = np.full(400_000, group.rank + 1, dtype=np.float32)
    group.all_reduce(array, op="sum")
    assert (array == group.size * (group.size + 1) / 2).all()
    return group.stats()


def test_where_it_is_required_ranks_of_one_host_multicast_too() -> None:
    for stats in group_results(4, reduce, REQUIRED):
        assert stats["multicast"]
        assert stats["multicast_bytes_sent"] == 400_000


def test_auto_does_not_multicast_within_one_host() -> None:
    for stats in group_results(3, reduce, replace(LOOPBACK, multicast="auto")):
        assert not stats["multicast"]
        assert stats["multicast_bytes_sent"] == 0


@pytest.fixture
def scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank takes another group for the session's."""
    true, calls = multicast.group_address, itertools.count()
    monkeypatch.setattr(multicast, "group_address", lambda seed, like: true(seed + next(calls), like))


@pytest.mark.usefixtures("scattered")
def test_where_it_is_required_ranks_that_do_not_hear_each_other_are_named() -> None:
    for error in group_outcomes(3, reduce, REQUIRED):
        assert isinstance(error, ConnectError)
        assert str(error).startswith(
            "multicast does not get through: rank 0 does not hear ranks 1, 2; rank 1"
        )
        assert error.ranks == (0, 1, 2)


@pytest.mark.usefixtures("scattered")
def test_where_it_is_tried_all_go_on_without_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(multicast, "_is_wanted", lambda setting, addresses: True)  # as between hosts
    for stats in group_results(3, reduce, replace(LOOPBACK, multicast="auto")):
        assert not stats["multicast"]
    said = [record.message for record in caplog.records if "multicast" in record.message]
    assert len(said) == 1
    assert "rank 2 does not hear ranks 0, 1" in said[0]


def test_a_host_that_cannot_multicast_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "group_address", lambda seed, address: "10.0.0.1")
    for error in group_outcomes(3, reduce, REQUIRED):
        assert isinstance(error, ConnectError)
        assert "rank 0 cannot multicast: '10.0.0.1' is not a multicast address" in str(error)


def test_ranks_that_disagree_do_not_form_a_group() -> None:
    store = MemoryStore()

    def join(rank: int) -> None:
        Communicator(rank, 2, store, REQUIRED if rank == 1 else LOOPBACK)

    for error in outcomes(2, join):
        assert isinstance(error, ConnectError)
        assert str(error).startswith("multicast is 'on' on rank 1 and 'off' on rank 0")


def test_many_unheard_ranks_make_a_short_text() -> None:
    text, deaf = multicast._unheard_text([[rank for rank in range(50) if rank != me] for me in range(50)])
    assert len(text) < 600
    assert text.endswith("and 42 more ranks")
    assert deaf == list(range(50))


def test_giving_it_up_later_is_for_the_log_and_not_for_membership(caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = SimpleNamespace(events=lambda: [("removed", 1, 1, 7), ("unreached", 2, 1, 9)])
    with caplog.at_level(logging.WARNING, logger="optireduce"):
        assert multicast.take_events(engine) == [("removed", 1, 1, 7)]
    assert [record.message for record in caplog.records] == [
        "multicast hardly reaches rank 2 any more (operation 9): decisions go to each rank singly from now on"
    ]


def test_a_simulated_group_sends_once_until_it_reaches_somebody_no_more() -> None:
    outage = GroupOutage(1, 0.0, 1e6)
    for outages, fallbacks in (((), [0, 0, 0]), ((outage,), [1, 0, 1])):
        simulation = Simulation(Network(3, multicast=True, group_outages=outages))
        for _ in range(10):
            arrays = [np.full(300_000, rank + 1, dtype=np.float32) for rank in range(3)]
            simulation.all_reduce(arrays)
            assert all((array == 6).all() for array in arrays)
        assert simulation.stats(0)["multicast_bytes_sent"] >= 8 * 400_000
        assert [simulation.stats(rank)["multicast_fallbacks"] for rank in range(3)] == fallbacks
