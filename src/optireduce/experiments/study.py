"""What every experiment is: a name, what the papers say, and a function from settings to findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..page.figure import Figure
from ..page.parts import Rows, Verdict


class Advance(Protocol):
    """Moves the progress bar: ``advance(note, done)``, ``done`` of the study's own units."""

    def __call__(self, note: str, done: float = 0) -> None: ...


@dataclass(frozen=True)
class Settings:
    """What a user may choose of any experiment. None: the study's own default."""

    quick: bool = False  # seconds instead of minutes, for tests: the verdicts then mean nothing
    hosts: tuple[int, ...] | None = None  # of studies in the lab
    seeds: int | None = None
    environments: tuple[str, ...] | None = None  # of studies in the lab


@dataclass(frozen=True)
class Findings:
    """All that a study has to say. ``data`` is every number behind it, as JSON values."""

    tables: Sequence[Rows]
    figures: Sequence[Figure]
    verdicts: Sequence[Verdict]
    data: Mapping[str, Any]
    notes: Sequence[str] = field(default_factory=tuple)  # sample sizes, limits


@dataclass(frozen=True)
class Study:
    """One experiment. ``units``: how much progress a run reports in all, under these settings."""

    name: str
    title: str
    question: str  # one or two sentences: what the papers claim and how it is tested here
    needs_lab: bool
    units: Callable[[Settings], float]
    run: Callable[[Settings, Advance], Findings]
