"""`optireduce experiment`: run studies, show their tables and verdicts, write their plots and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ...errors import OptiReduceError
from ...experiments.catalogue import STUDIES
from ...experiments.study import Findings, Settings, Study
from ...lab import LabError, find_environment
from ...page.errors import PageError
from ...page.parts import Rows, Verdict
from ...trials.ranks import RankFailed
from ..console import print_table, progress_bar, say
from ..errors import CommandFailed, UsageError
from ..lab.options import become_able
from ..units import parse_count, parse_list
from .files import write_findings


def experiment(
    names: Annotated[
        list[str] | None, typer.Argument(help="Studies, or `all`; none: list them.", metavar="[NAME]...")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Seconds instead of minutes; the verdicts then mean nothing.")
    ] = False,
    hosts: Annotated[str | None, typer.Option(help="Of studies in the lab, with commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs with other random numbers.")] = None,
    environments: Annotated[str | None, typer.Option(help="Of studies in the lab, with commas.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for JSON, plots and pages.")] = Path(
        "optireduce-experiments"
    ),
) -> None:
    """Run the papers' claims as studies: tables and verdicts here, plots and a page in a folder.

    Each study says what the paper found, what was found here, with how many samples, and whether that agrees.
    """
    if not names:
        _list()
        return
    chosen = list(STUDIES.values()) if names == ["all"] else [_find(name) for name in names]
    settings = Settings(
        quick=quick,
        hosts=None
        if hosts is None
        else parse_list(hosts, "--hosts", lambda text: parse_count(text, "--hosts", 2)),
        seeds=seeds,
        environments=None
        if environments is None
        else parse_list(environments, "--environments", _check_environment),
    )
    if any(study.needs_lab for study in chosen):
        become_able()
    for study in chosen:
        _run(study, settings, out)


def _list() -> None:
    table = Table(pad_edge=False)
    for name in ("study", "where", "question"):
        table.add_column(name, no_wrap=name != "question", max_width=110)
    for study in STUDIES.values():
        table.add_row(study.name, "lab" if study.needs_lab else "simulated", study.question)
    print_table(table)


def _run(study: Study, settings: Settings, out: Path) -> None:
    with progress_bar(redraws_itself=False) as progress:
        bar = progress.add_task(study.name, total=round(study.units(settings)), note="starting")

        def advance(note: str, done: float = 0) -> None:
            progress.update(bar, advance=done, note=note, refresh=True)

        try:
            findings = study.run(settings, advance)
        except (OptiReduceError, RankFailed) as error:
            raise CommandFailed(f"{study.name}: {error}") from error
    _show(study, findings)
    try:
        page = write_findings(study, findings, settings, out)
    except (PageError, OSError) as error:
        raise CommandFailed(f"{study.name}: {error}") from error
    say(f"look at it: [bold]{page}[/]\n")


def _show(study: Study, findings: Findings) -> None:
    say(f"[bold]{study.title}[/]")
    for rows in findings.tables:
        print_table(_render(rows))
    for note in findings.notes:
        say(f"[dim]{note}[/]")
    for verdict in findings.verdicts:
        _say_verdict(verdict)


def _say_verdict(verdict: Verdict) -> None:
    word = "[green]holds[/]" if verdict.holds else "[red]does not hold[/]"
    note = f" ({verdict.note})" if verdict.note else ""
    say(f"{word}: {verdict.claim}: paper {verdict.paper}; here {verdict.ours}{note}")


def _render(rows: Rows) -> Table:
    table = Table(title=rows.title, title_justify="left", pad_edge=False)
    for index, name in enumerate(rows.header):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows.rows:
        table.add_row(*row)
    return table


def _find(name: str) -> Study:
    if name not in STUDIES:
        raise UsageError(f"{name!r} is not a study; there are: {', '.join(STUDIES)}")
    return STUDIES[name]


def _check_environment(name: str) -> str:
    try:
        return find_environment(name).name
    except LabError as error:
        raise UsageError(f"--environments: {error}") from error
