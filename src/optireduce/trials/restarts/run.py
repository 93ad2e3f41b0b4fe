"""Kills a rank, starts it again, and again, and follows what all ranks tell."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..places import Place
from ..ranks import RankFailed, Ranks, Record
from .outcome import Outcome, Return, longest_of
from .plan import RANK_MODULE, WITNESS, RestartPlan, seats

_TICK_SECONDS = 0.1
_SETTLE_SECONDS = 10.0  # before the first kill: what is usual
_MOST_SILENCE_SECONDS = 60.0
_LAST_STEPS = 100  # between the newest step known and the end

Advance = Callable[[str, float], None]


def run_restarts(
    place: Place, plan: RestartPlan, port: int, advance: Advance = lambda note, seconds: None
) -> Outcome:
    """The outcome; ``port`` is free on the first host."""
    return _Run(place, plan, port, advance).run()


class _Run:
    def __init__(self, place: Place, plan: RestartPlan, port: int, advance: Advance) -> None:
        self._place, self._plan, self._port, self._advance = place, plan, port, advance
        self._outcome = Outcome()
        self._victims = iter(plan.victims)
        self._began: float | None = None
        self._next_kill = 0.0
        self._away: Return | None = None  # killed, not started again
        self._heard: dict[int, float] = {}
        self._newest = 0
        self._over = False

    def run(self) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="optireduce-restarts-") as folder:
            self._end = Path(folder) / "end"
            places = seats(
                self._plan, self._place.addresses, self._place.interface, self._port, str(self._end)
            )
            try:
                with Ranks(self._place, RANK_MODULE, places, python=self._plan.python) as ranks:
                    for told in ranks.records(_TICK_SECONDS, begin=self._begin):
                        if told is not None:
                            self._note(*told)
                        self._act(ranks)
            except RankFailed as error:
                self._outcome.failure = str(error)
        self._outcome.steps = self._newest
        return self._outcome

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._next_kill = self._began + _SETTLE_SECONDS

    def _act(self, ranks: Ranks) -> None:
        if self._began is None or self._over:
            return
        now = time.monotonic()
        self._advance("training" if self._away is None else "a rank is away", now - self._began)
        self._look_for_hangs(now)
        if self._away is not None and now >= self._away.killed_at + self._plan.away_seconds:
            ranks.start_again(self._away.victim)
            self._away.started_at = now
            self._heard[self._away.victim] = now
            self._away = None
        elif self._away is None and now >= self._next_kill and self._is_whole(now):
            self._kill_next(ranks, now)

    def _is_whole(self, now: float) -> bool:
        """Two ranks at once might be more than half of a group. A rank that does not come back at all is a
        failure, which the others need not wait for any longer."""
        returns = self._outcome.returns
        late = now >= self._next_kill + self._plan.every_seconds
        return not returns or returns[-1].whole_at is not None or late

    def _kill_next(self, ranks: Ranks, now: float) -> None:
        victim = next(self._victims, None)
        if victim is None:
            self._over = True
            self._end.with_suffix(".new").write_text(str(self._newest + _LAST_STEPS))
            self._end.with_suffix(".new").rename(self._end)
            return
        self._next_kill = now + self._plan.every_seconds
        self._away = Return(victim, now)
        self._outcome.returns.append(self._away)
        self._heard.pop(victim, None)
        ranks.kill(victim)

    def _note(self, rank: int, record: Record) -> None:
        now = time.monotonic()
        self._heard[rank] = now
        latest = self._outcome.returns[-1] if self._outcome.returns else None
        if record["kind"] == "began" and latest is not None and rank == latest.victim:
            latest.began_at, latest.incarnation = now, record["incarnation"]
        if record["kind"] != "progress":
            return
        if rank == WITNESS:
            self._outcome.resident.append(record["resident"])
        if latest is None:
            self._outcome.usual += record["times"]
        elif rank != latest.victim:
            latest.longest = max(latest.longest, longest_of(record["times"]))
            latest.another_step += len(record["times"]) if latest.whole_at is None else 0
        elif latest.whole_at is None and latest.began_at is not None and record["checks"]:
            latest.whole_at = now
            latest.own_steps = record["own"] - len(record["checks"]) + 1
        for step, checksum, _ in record["checks"]:
            self._newest = max(self._newest, step)
            self._outcome.checks.add(rank, step, checksum)

    def _look_for_hangs(self, now: float) -> None:
        for rank, heard in self._heard.items():
            if now - heard > _MOST_SILENCE_SECONDS:
                raise RankFailed(f"rank {rank} hangs: it told nothing for {now - heard:.0f} s")
