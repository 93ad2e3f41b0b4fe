"""What a study leaves behind: its numbers as JSON, its plots as images, and a page with all of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ...experiments.study import Findings, Settings, Study
from ...page.draw import png, styles_of
from ...page.facts import machine_facts
from ...page.page import Section, write_page


def write_findings(study: Study, findings: Findings, settings: Settings, out: Path) -> Path:
    """Write everything into a folder of the study's own; the page's path."""
    folder = out / study.name
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    document = {
        "study": study.name,
        "settings": asdict(settings),
        "machine": dict(facts),
        "verdicts": [asdict(verdict) for verdict in findings.verdicts],
        "tables": [asdict(rows) for rows in findings.tables],
        "notes": list(findings.notes),
        "data": findings.data,
    }
    (folder / "findings.json").write_text(json.dumps(document) + "\n")
    looks = styles_of(findings.figures)
    for figure in findings.figures:
        png(figure, looks, folder / f"{figure.name}.png")
    page = folder / "index.html"
    section = Section(
        study.title, study.question, findings.tables, findings.figures, findings.verdicts, findings.notes
    )
    write_page(page, f"optireduce: {study.name}", [section], facts)
    return page
