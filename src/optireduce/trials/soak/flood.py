"""All-reduces while a stranger floods one rank's ports, and while it does not, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from ...lab import Lab
from ..ranks import Ranks, Record
from .outcome import NO_DEVIATION, Checks
from .plan import RANK_MODULE, SoakPlan, seats

_TICK_SECONDS = 0.05
_TURN_SECONDS = 3.0
_SETTLING_SECONDS = 0.5  # after each change: operations that saw both do not count
_WARM_SECONDS = 4.0
_FLOODED = 0  # the host

Advance = Callable[[str, float], None]


@dataclass
class FloodOutcome:
    """Times of operations on all ranks, by whether there was a flood; and what it came to."""

    quiet: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)
    refused: int = 0  # packets of the stranger that the flooded host's kernel threw away
    flood_seconds: float = 0.0
    reached: int = 0  # packets that an engine saw and did not believe
    checks: Checks = field(default_factory=Checks)
    off: list[str] = field(default_factory=list)  # ranks whose sums are wrong
    ended: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the median times, with the flood to without."""
        return median(self.flooded) / median(self.quiet)

    @property
    def packets_per_second(self) -> float:
        """That arrived."""
        return self.refused / self.flood_seconds if self.flood_seconds else 0.0


def run_flood(
    lab: Lab, plan: SoakPlan, packets_per_second: int, advance: Advance = lambda note, seconds: None
) -> FloodOutcome:
    """For the length of a chapter of the plan."""
    outcome, turns = FloodOutcome(), _Turns(lab, packets_per_second)
    times: list[tuple[float, float]] = []
    leaving = False
    with Ranks(lab, RANK_MODULE, seats(plan, lab.addresses, lab.interface)) as ranks:
        for told in ranks.records(_TICK_SECONDS, begin=turns.begin):
            if turns.began is not None and not leaving:
                passed = time.monotonic() - turns.began
                turns.follow(passed, plan.chapter_seconds)
                advance("flood" if turns.flooding else "quiet", passed)
            if told is None:
                continue
            record = told[1]
            leaving = leaving or record["kind"] in ("ended", "ledger", "tally")  # its ports are closed soon
            _note(outcome, *told, times)
    turns.sort(times, outcome)
    return outcome


def _note(outcome: FloodOutcome, rank: int, record: Record, times: list[tuple[float, float]]) -> None:
    if record["kind"] == "progress":
        times += [(begin, spent) for begin, spent in record["times"]]
        for step, checksum in record["checks"]:
            outcome.checks.add(rank, step, checksum)
    if record["kind"] == "ended":
        outcome.ended.append(record["error"])
    if record["kind"] == "ledger" and record["deviation"] > record["allowed"] + NO_DEVIATION:
        outcome.off.append(f"rank {rank}: a value is off by {record['deviation']:.2f} contributions")
    if record["kind"] == "tally":
        outcome.reached += record["disbelieved"]


class _Turns:
    """Flood and quiet by turns, and when each was."""

    def __init__(self, lab: Lab, packets_per_second: int) -> None:
        self._lab, self._packets_per_second = lab, packets_per_second
        self._turns: list[tuple[float, float, bool]] = []  # begin, end, whether flooded
        self.began: float | None = None  # when all ranks were ready
        self._since = 0.0
        self._refused = self._before = 0
        self.flooding = False

    def begin(self) -> None:
        """All ranks are ready. The first seconds do not count."""
        self.began = time.monotonic()
        self._since = self.began + _WARM_SECONDS

    def follow(self, passed: float, whole: float) -> None:
        """Change over when it is time to; quiet at both ends."""
        turn = int((passed - _WARM_SECONDS) / _TURN_SECONDS)
        wanted = passed > _WARM_SECONDS and turn % 2 == 1 and passed < whole - _TURN_SECONDS
        if wanted == self.flooding:
            return
        now = time.monotonic()
        self._turns.append((self._since, now, self.flooding))
        if wanted:
            self._before = self._lab.refused_packets(_FLOODED)
            self._lab.flood(_FLOODED, self._packets_per_second)
        else:
            self._lab.stop_background()
            self._refused += self._lab.refused_packets(_FLOODED) - self._before
        self._since, self.flooding = time.monotonic(), wanted

    def sort(self, times: list[tuple[float, float]], outcome: FloodOutcome) -> None:
        """Each time to its kind."""
        outcome.refused = self._refused
        for begin, end, flooded in [*self._turns, (self._since, time.monotonic(), self.flooding)]:
            inside = [spent for at, spent in times if begin + _SETTLING_SECONDS < at and at + spent < end]
            (outcome.flooded if flooded else outcome.quiet).extend(inside)
            if flooded:
                outcome.flood_seconds += end - begin
