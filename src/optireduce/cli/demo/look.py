"""The demo's page: the one that `optireduce report` makes of anybody's training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...page.errors import PageError
from ..console import say


def write_report(out: Path, title: str, runs: Mapping[str, Path]) -> Path | None:
    """Page and plots from the logs in the folders; None, and a word about it, where they cannot be drawn."""
    from ...page.draw import png, styles_of
    from ...page.facts import machine_facts
    from ...page.page import write_page
    from ...page.run_sections import run_sections
    from ...page.runs import read_run

    page = out / "report.html"
    try:
        read = [read_run(system, sorted(folder.glob("*.jsonl"))) for system, folder in runs.items()]
        sections = run_sections([run for run in read if not run.empty])
        write_page(page, f"optireduce demo: {title}", sections, machine_facts())
        figures = [figure for section in sections for figure in section.figures]
        looks = styles_of(figures)
        for figure in figures:
            png(figure, looks, out / f"{figure.name}.png")
    except PageError as error:
        say(f"[yellow]no page[/]: {error}")
        return None
    return page
