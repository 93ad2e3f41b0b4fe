"""From a line of a log to a checked record: what an operation, a step or an evaluation said about itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

_MOST = 2**63 - 1  # what a column of whole numbers holds


@dataclass(frozen=True, slots=True)
class Operation:
    """One all-reduce on one rank; see ``optireduce.operation_log``. NaN: not known."""

    time: float
    rank: int
    size: int  # bytes; 0: not known
    elapsed_ms: float
    stood_still_ms: float
    missing_share: float  # of the contributions: excluded or, with best effort, lost
    closed_by: str
    bounded: bool
    deadline_ms: float
    usual_ms: float
    behind_ms: float
    waited_for: int | None  # the rank whose contribution came last
    waited_ms: float
    repaired_bytes: int
    excluded: Mapping[int, int]  # bytes by rank
    carried_bytes: int
    void_bytes: int
    dropped_bytes: int
    view: int
    members: tuple[int, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on one rank. NaN: not known."""

    time: float
    rank: int
    step: int
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One evaluation. NaN: the loss was not finite."""

    time: float
    rank: int
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """A kind that a newer version, or the user, writes."""

    kind: str


Record: TypeAlias = Operation | Step | HeldOut | Unknown


class NotJsonError(ValueError):
    """The line is no JSON at all, as when its writer died in the middle of it."""


class BadRecordError(ValueError):
    """The line is JSON, but no record of ours; the text says which field, and what would be right."""


def parse_line(line: bytes) -> Record:
    """The record in this line. Raises NotJsonError or BadRecordError."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    if not isinstance(fields, dict):
        raise BadRecordError(f"{_short(fields)} is not a record; lines are JSON objects")
    if "kind" not in fields:
        return _operation(fields)
    if fields["kind"] == "step":
        return Step(
            *_when_and_who(fields),
            _whole(fields, "step"),
            _number(fields, "seconds"),
            _number(fields, "loss"),
        )
    if fields["kind"] == "held_out":
        return HeldOut(*_when_and_who(fields), _whole(fields, "step"), _number(fields, "loss"))
    return Unknown(_short(fields["kind"]))


def _operation(fields: Mapping[str, Any]) -> Operation:
    if "operation" not in fields:
        raise BadRecordError('it has neither "kind" nor "operation"; is this a log of optireduce?')
    time, rank = _when_and_who(fields)
    return Operation(
        time=time,
        rank=rank,
        size=_whole_or_zero(fields, "bytes"),
        elapsed_ms=_number(fields, "elapsed_ms"),
        stood_still_ms=_number(fields, "stood_still_ms"),
        missing_share=_missing_share(fields),
        closed_by=_text(fields, "closed_by") or "unknown",
        bounded=fields.get("bounded") is True,
        deadline_ms=_number(fields, "deadline_ms"),
        usual_ms=_usual(_number(fields, "usual_ms"), _number(fields, "early_ms")),
        behind_ms=_number(fields, "behind_ms"),
        waited_for=None if fields.get("waited_for") is None else _whole(fields, "waited_for"),
        waited_ms=_number(fields, "waited_ms"),
        repaired_bytes=_whole_or_zero(fields, "repaired_bytes"),
        excluded=_bytes_by_rank(fields, "excluded"),
        carried_bytes=_whole_or_zero(fields, "carried_bytes"),
        void_bytes=_whole_or_zero(fields, "void_bytes"),
        dropped_bytes=_whole_or_zero(fields, "dropped_bytes"),
        view=_whole_or_zero(fields, "view"),
        members=_ranks(fields, "members"),
        error=_text(fields, "error"),
    )


def _when_and_who(fields: Mapping[str, Any]) -> tuple[float, int]:
    time = _number(fields, "time")
    if math.isnan(time):
        raise BadRecordError('"time" is missing; it is a number of seconds since 1970')
    return time, _whole(fields, "rank")


def _number(fields: Mapping[str, Any], name: str) -> float:
    """A number; NaN where the log has null, nothing, or one that is not finite."""
    value = fields.get(name)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecordError(f'"{name}" is {_short(value)}; it must be a number or null')
    if isinstance(value, int) and abs(value) > _MOST:
        raise BadRecordError(f'"{name}" is {_short(value)}; that is too much')
    return float(value) if math.isfinite(value) else math.nan


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not _is_whole(value):
        raise BadRecordError(f'"{name}" is {_short(value)}; it must be a whole number, 0 or more')
    return value


def _whole_or_zero(fields: Mapping[str, Any], name: str) -> int:
    """A whole number; 0 where the log has null or nothing."""
    return 0 if fields.get(name) is None else _whole(fields, name)


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRecordError(f'"{name}" is {_short(value)}; it must be a text or null')
    return value


def _missing_share(fields: Mapping[str, Any]) -> float:
    """A log has what its group's delivery tells: exclusions, or losses in both stages."""
    lost = _whole_or_zero(fields, "lost_contribution_bytes") + _whole_or_zero(fields, "lost_decision_bytes")
    size = _whole_or_zero(fields, "bytes")
    return lost / size if lost and size else _number(fields, "excluded_share")


def _usual(usual: float, early: float) -> float:
    """Best effort calls it tC."""
    return usual if usual > 0 else early


def _bytes_by_rank(fields: Mapping[str, Any], name: str) -> dict[int, int]:
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise BadRecordError(f'"{name}" is {_short(value)}; it must be like {{"2": 100}}')
    for rank, count in value.items():
        if not rank.isdecimal() or not _is_whole(count):
            raise BadRecordError(f'"{name}" has {_short({rank: count})}; it must be like {{"2": 100}}')
    return {int(rank): count for rank, count in value.items()}


def _ranks(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(map(_is_whole, value)):
        raise BadRecordError(f'"{name}" is {_short(value)}; it must be a list of ranks')
    return tuple(value)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
