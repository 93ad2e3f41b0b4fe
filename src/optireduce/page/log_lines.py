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
    lost_share: float  # in both stages
    closed_by: str
    bounded: bool
    bound_ms: float
    early_ms: float
    behind_ms: float
    repaired_bytes: int
    lost_by_peer: Mapping[int, int]  # bytes in both stages
    absent: tuple[int, ...]
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
        lost_share=_number(fields, "contributions_lost") + _number(fields, "reduced_lost"),
        closed_by=_text(fields, "closed_by") or "unknown",
        bounded=fields.get("bounded") is True,
        bound_ms=_number(fields, "bound_ms"),
        early_ms=_number(fields, "early_ms"),
        behind_ms=_number(fields, "behind_ms"),
        repaired_bytes=_whole_or_zero(fields, "repaired_bytes"),
        lost_by_peer=_lost_by_peer(fields.get("lost_by_peer") or {}),
        absent=_ranks(fields.get("absent") or []),
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


def _lost_by_peer(value: Any) -> dict[int, int]:
    if not isinstance(value, dict):
        raise BadRecordError(f'"lost_by_peer" is {_short(value)}; it must be like {{"2": [100, 0]}}')
    lost: dict[int, int] = {}
    for peer, amounts in value.items():
        if not peer.isdecimal() or not isinstance(amounts, list) or not all(map(_is_whole, amounts)):
            raise BadRecordError(
                f'"lost_by_peer" has {_short({peer: amounts})}; it must be like {{"2": [100, 0]}}'
            )
        lost[int(peer)] = sum(amounts)
    return lost


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(map(_is_whole, value)):
        raise BadRecordError(f'"absent" is {_short(value)}; it must be a list of ranks')
    return tuple(value)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
