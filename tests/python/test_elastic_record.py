"""The record of a running group: what is read from a store or a peer is what was written, or refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optireduce.elastic.record import Entry, Record, parsed

RANKS = 3
ENTRY = Entry(0, "10.0.0.1", (0, 7, 8), 1000, 99)


def entry_of(rank: int, incarnation: int = 0) -> Entry:
    ports = tuple(0 if n == rank else 100 * rank + n + 1 for n in range(RANKS))
    return Entry(incarnation, f"10.0.0.{rank + 1}", ports, 1000 + rank, 9_000 + rank)


def record_of(*incarnations: int, session: str = "s") -> Record:
    ranks = tuple(entry_of(rank, each) for rank, each in enumerate(incarnations))
    return Record(session, "1.0", {"bounded": True}, bytes(range(16)), 2**64 - 1, 2, 1500, ranks)


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=RANKS, max_size=RANKS),
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.text(), st.one_of(st.booleans(), st.integers(), st.text())),
    st.integers(0, 2**64 - 1),
)
def test_a_record_survives_text(
    incarnations: list[int], session: str, settings: dict[str, Any], seed: int
) -> None:
    record = dataclasses.replace(record_of(*incarnations, session=session), settings=settings, seed=seed)
    assert Record.of(parsed(json.dumps(record.to_json()).encode())) == record


def test_rows_of_a_grid_survive_text() -> None:
    record = dataclasses.replace(record_of(0, 0, 0), rows=((0,), (2,), (1,)))
    assert Record.of(parsed(json.dumps(record.to_json()).encode())) == record


@pytest.mark.parametrize("rows", [[[0, 1], [2]], [[0], [1]], [[0], [1], [1]], [[0], [1], [3]], [0, 1, 2]])
def test_rows_that_do_not_name_every_rank_once_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="rows"):
        Record.of(record_of(0, 0, 0).to_json() | {"rows": rows})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values)
def test_what_is_no_record_is_refused(found: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever value
        Record.of(found)


@given(st.sampled_from(sorted(record_of(0, 1, 2).to_json())), values)
def test_a_record_with_another_value_is_refused_or_means_it(name: str, value: Any) -> None:
    found = record_of(0, 1, 2).to_json() | {name: value}
    try:
        record = Record.of(found)
    except ValueError:
        return
    assert record.to_json()[name] == (value.lower().lstrip("0") or "0" if name == "seed" else value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("incarnation", -1), ("incarnation", 2**32), ("incarnation", True), ("incarnation", "1"),
        ("address", "host"), ("address", ""), ("address", None),
        ("ports", [0, 7]), ("ports", [0, 7, 65_536]), ("ports", [0, 0, 8]), ("ports", [0, 7, None]),
        ("ports", "078"), ("door", 0), ("door", 65_536), ("grant_bytes", 0),
    ],
)  # fmt: skip
def test_an_entry_out_of_range_is_refused(name: str, value: Any) -> None:
    assert Entry.of(ENTRY.to_json(), 0, RANKS) == ENTRY
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever value
        Entry.of(ENTRY.to_json() | {name: value}, 0, RANKS)


def test_a_missing_field_is_named() -> None:
    for name in ENTRY.to_json():
        found = ENTRY.to_json()
        del found[name]
        with pytest.raises(ValueError, match=name):
            Entry.of(found, 0, RANKS)


def test_of_two_processes_the_later_one_counts() -> None:
    ours, theirs = record_of(0, 2, 1), record_of(1, 1, 1)
    assert ours.newer_in(theirs) == {0: entry_of(0, 1)}
    assert ours.joined(theirs) == record_of(1, 2, 1) == theirs.joined(ours)
    assert ours.joined(record_of(9, 9, 9, session="other")) == ours


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(record_of(0, 0, 0))


def test_deep_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parsed(b"[" * 100_000)
