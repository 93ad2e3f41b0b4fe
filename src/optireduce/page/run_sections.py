"""The page about training runs: which sections it has, and what it says where something was not logged."""

from __future__ import annotations

from collections.abc import Sequence

from . import run_figures, words
from .page import Section
from .parts import Rows
from .run_summary import headline, summary_table
from .runs import Run

_WORST_LINKS = 10
_MOST_ERRORS = 3
_LOG_STEPS = "optireduce.page.training_log.TrainingLog(path, rank) writes them: .step(step, seconds, loss)"
_LOG_HELD_OUT = "TrainingLog(path, rank).held_out(step, loss) logs it"
_LOG_OPERATIONS = (
    "optireduce logs them with Config(operation_log='logs/operations-{rank}.jsonl') or, in the environment, "
    "OPTIREDUCE_OPERATION_LOG='logs/operations-{rank}.jsonl'"
)


def run_sections(runs: Sequence[Run]) -> list[Section]:
    """Summary, speed, learning, losses and deadlines, ranks; a section without data only says so."""
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
            "Losses and deadlines",
            figures=[*run_figures.lost_share(runs), *run_figures.deadlines(runs)],
            notes=[*_without(runs, "operations", _LOG_OPERATIONS), *_lossless(runs)],
        ),
        Section(
            "Ranks and links",
            tables=_worst_links(runs),
            figures=[*run_figures.lost_by_peer(runs), *run_figures.late_ranks(runs)],
        ),
    ]


_NAMES = {"steps": "training steps", "held_out": "loss on held-out data", "operations": "operations"}


def _without(runs: Sequence[Run], what: str, how: str) -> list[str]:
    labels = [run.label for run in runs if not len(getattr(run, what).time)]
    return [f"{', '.join(labels)}: no {_NAMES[what]} logged; {how}."] if labels else []


def _summary_notes() -> list[str]:
    return [
        "A step lasts from when the last rank began it to when the last ended it. An operation counts once "
        "for each rank that logged it; times and losses are without operations that failed.",
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


def _lossless(runs: Sequence[Run]) -> list[str]:
    labels = [
        run.label for run in runs if run.operations.time and not any(x > 0 for x in run.operations.lost_share)
    ]
    return [f"{', '.join(labels)}: no operation lost anything."] if labels else []


def _worst_links(runs: Sequence[Run]) -> list[Rows]:
    """Which links are bad: one that stands out is a cable or a port, a sender that does is a machine."""
    tables = []
    for run in runs:
        links = sorted(run.lost_by_link.items(), key=lambda item: (-item[1], item[0]))
        rows = [(f"{sender} → {receiver}", words.size(lost)) for (sender, receiver), lost in links if lost]
        if rows:
            title = f"Links that lost most: {run.label}"
            tables.append(Rows(title, ("from → to rank", "lost"), rows[:_WORST_LINKS]))
    return tables
