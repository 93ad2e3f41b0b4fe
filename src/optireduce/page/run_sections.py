"""The page about training runs: which sections it has, and what it says where something was not logged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from . import run_figures, words
from .page import Section
from .parts import Rows
from .run_summary import headline, summary_table, waited_seconds
from .runs import Run

_WORST_RANKS = 10
_MOST_VIEWS = 100
_MOST_ERRORS = 3
_LOG_STEPS = "optireduce.page.training_log.TrainingLog(path, rank) writes them: .step(step, seconds, loss)"
_LOG_HELD_OUT = "TrainingLog(path, rank).held_out(step, loss) logs it"
_LOG_OPERATIONS = (
    "optireduce logs them with Config(operation_log='logs/operations-{rank}.jsonl') or, in the environment, "
    "OPTIREDUCE_OPERATION_LOG='logs/operations-{rank}.jsonl'"
)


def run_sections(runs: Sequence[Run]) -> list[Section]:
    """Summary, speed, learning, deadlines, ranks; a section without data only says so."""
    return [
        Section(
            "Runs",
            text=headline(runs),
            tables=[summary_table(runs)],
            notes=[*_summary_notes(), *_reading_notes(runs)],
        ),
        Section("Speed", figures=run_figures.step_times(runs), notes=_without(runs, "steps", _LOG_STEPS)),
        Section(
            "Learning",
            figures=[*run_figures.held_out_loss(runs), *run_figures.training_loss(runs)],
            notes=_without(runs, "held_out", _LOG_HELD_OUT),
        ),
        Section(
            "Deadlines",
            figures=[
                *run_figures.missing_share(runs),
                *run_figures.excluded_over_time(runs),
                *run_figures.deadlines(runs),
            ],
            notes=[*_without(runs, "operations", _LOG_OPERATIONS), *_nothing_missed(runs)],
        ),
        Section(
            "Ranks and membership",
            tables=[*_waited_for(runs), *_views(runs)],
            figures=[
                *run_figures.waited_for(runs),
                *run_figures.excluded_by_rank(runs),
                *run_figures.late_ranks(runs),
            ],
        ),
    ]


_NAMES = {"steps": "training steps", "held_out": "loss on held-out data", "operations": "operations"}


def _without(runs: Sequence[Run], what: str, how: str) -> list[str]:
    labels = [run.label for run in runs if not len(getattr(run, what).time)]
    return [f"{', '.join(labels)}: no {_NAMES[what]} logged; {how}."] if labels else []


def _summary_notes() -> list[str]:
    return [
        "A step lasts from when the last rank began it to when the last ended it. An operation counts once "
        "for each rank that logged it; times and shares are without operations that failed.",
        "Machine and versions above are those on which this page was made.",
    ]


def _reading_notes(runs: Sequence[Run]) -> list[str]:
    """What the logs hold beside the numbers."""
    notes = []
    for run in runs:
        if run.unknown:
            kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(run.unknown.items()))
            notes.append(f"{run.label}: lines of kinds that are not known here were left out: {kinds}.")
        if run.cut_off:
            notes.append(
                f"{run.label}: the last line is cut off in {', '.join(sorted(run.cut_off))}; "
                "its writer was ended, or still writes."
            )
        errors = sorted(run.errors.items(), key=lambda item: (-item[1], item[0]))
        notes += [
            f"{run.label}: {count:,} operations failed: {text}" for text, count in errors[:_MOST_ERRORS]
        ]
    return notes


def _nothing_missed(runs: Sequence[Run]) -> list[str]:
    labels = [
        run.label
        for run in runs
        if run.operations.time and not any(share > 0 for share in run.operations.missing_share)
    ]
    return [f"{', '.join(labels)}: no contribution missed its deadline."] if labels else []


def _waited_for(runs: Sequence[Run]) -> list[Rows]:
    """A rank that stands out has a slow machine or a slow link."""
    tables = []
    for run in runs:
        rows = [
            (
                str(rank),
                f"{len(run.waits[rank]):,}",
                words.seconds(total),
                words.seconds(max(run.waits[rank]) / 1e3),
            )
            for rank, total in waited_seconds(run)[:_WORST_RANKS]
        ]
        if rows:
            title = f"Ranks that others waited for: {run.label}"
            tables.append(Rows(title, ("rank", "came last", "waited in all", "longest"), rows))
    return tables


def _views(runs: Sequence[Run]) -> list[Rows]:
    """Changes of the membership, in their order; nothing where there was none."""
    tables = []
    for run in runs:
        found = sorted((view, members, time) for (view, members), time in run.views.items())
        rows = [
            (words.seconds(time - run.first_time), str(view), words.ranks(members), _change(before, members))
            for (_, before, _), (view, members, time) in pairwise(found)
        ][:_MOST_VIEWS]
        if rows:
            tables.append(
                Rows(f"Membership views: {run.label}", ("after", "view", "members", "change"), rows)
            )
    return tables


def _change(before: Sequence[int], after: Sequence[int]) -> str:
    removed, returned = set(before) - set(after), set(after) - set(before)
    changes = [
        f"{what}: rank {words.ranks(ranks)}"
        for what, ranks in (("removed", removed), ("returned", returned))
        if ranks
    ]
    return "; ".join(changes) or "none"
