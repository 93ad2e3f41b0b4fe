"""`optireduce report`: read logs of training runs, show a summary, write a page with plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ...page.errors import PageError
from ..console import print_table, say
from ..errors import CommandFailed, UsageError
from .inputs import parse_inputs
from .progress import reading
from .table import render

if TYPE_CHECKING:
    from ...page.page import Section
    from ...page.runs import Run


def report(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]PATH...",
            help="A log file, a folder with *.jsonl files, or a pattern. The same label: the same run.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every plot as an image to this folder.")
    ] = None,
) -> None:
    """Look at training runs: how long steps took, how the loss fell, what was lost, when and by whom.

    `optireduce report gloo=logs/gloo optireduce=logs/optireduce`

    Reads the logs of all ranks: what `OPTIREDUCE_OPERATION_LOG` writes, and the steps and losses that
    `optireduce.page.training_log.TrainingLog` writes. Without a label, a run is called like its file or
    folder. The page is one file that needs no network.
    """
    files = parse_inputs(inputs)
    _check_folder("--out", out)
    _check_png(png)
    try:
        _make(files, out, png)
    except PageError as error:
        raise CommandFailed(str(error)) from error


def _make(files: dict[str, list[Path]], out: Path, png: Path | None) -> None:
    from ...page.facts import machine_facts
    from ...page.page import write_page
    from ...page.run_sections import run_sections

    sections = run_sections(_read(files))
    print_table(render(sections[0].tables[0]))
    if sections[0].text:
        say(escape(sections[0].text))
    write_page(out, _title(list(files)), sections, machine_facts())
    say(f"page: {escape(str(out))}")
    if png is not None:
        _write_images(sections, png)


def _read(files: dict[str, list[Path]]) -> list[Run]:
    from ...page.runs import read_run

    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    with reading(total) as advance:
        runs = [read_run(label, paths, advance) for label, paths in files.items()]
    for run in runs:
        if run.empty:
            names = ", ".join(map(str, files[run.label]))
            raise CommandFailed(f"{run.label}: no operation, step or loss is logged in {names}")
    return runs


def _title(labels: Sequence[str]) -> str:
    return f"Training: {', '.join(labels)}"


def _write_images(sections: Sequence[Section], folder: Path) -> None:
    from ...page.draw import png, styles_of

    figures = [figure for section in sections for figure in section.figures]
    looks = styles_of(figures)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"--png: cannot make {str(folder)!r}: {error.strerror}") from error
    for figure in figures:
        png(figure, looks, folder / f"{figure.name}.png")
    say(f"plots: {escape(str(folder))} ({len(figures)})")


def _check_folder(option: str, path: Path) -> None:
    """Before minutes of reading, not after."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{option}: {str(path)!r} cannot be written; name a file in an existing folder")


def _check_png(folder: Path | None) -> None:
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"--png: {str(folder)!r} is a file; name a folder")
