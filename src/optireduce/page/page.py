"""One HTML file with all in it, for a browser that has no network: no script, nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path

from . import draw
from .errors import PageError
from .figure import Figure
from .palette import Style
from .parts import Rows, Verdict
from .style import STYLE

# Nothing may be loaded or run, not even if a text got past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading: text, verdicts, tables, figures, notes, where there are any."""

    title: str
    text: str = ""
    tables: Sequence[Rows] = ()
    figures: Sequence[Figure] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()


def write_page(path: Path, title: str, sections: Sequence[Section], facts: Mapping[str, str]) -> None:
    """Write the page. Whoever reads ``path`` meanwhile sees the old page or the new one, never a half."""
    _write_at_once(path, render_page(title, sections, facts))


def render_page(title: str, sections: Sequence[Section], facts: Mapping[str, str]) -> str:
    """The page as text. A series name has the same look in all sections."""
    looks = draw.styles_of(figure for section in sections for figure in section.figures)
    numbers = count(1)
    body = [f"<h1>{escape(title)}</h1>", _facts(facts)]
    for section in sections:
        body += _section(section, looks, numbers)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            *body,
            "</body>\n</html>\n",
        )
    )


def _facts(facts: Mapping[str, str]) -> str:
    spans = (f"<span>{escape(name)}: {escape(value)}</span>" for name, value in facts.items())
    return f'<p class="facts">{" ".join(spans)}</p>'


def _section(section: Section, looks: Mapping[str, Style], numbers: Iterable[int]) -> list[str]:
    parts = [f"<section>\n<h2>{escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    if section.verdicts:
        parts.append(f'<ul class="verdicts">{"".join(map(_verdict, section.verdicts))}</ul>')
    parts += map(_table, section.tables)
    if section.figures:
        cards = (
            _card(figure, looks, number) for figure, number in zip(section.figures, numbers, strict=False)
        )
        parts.append(f'<div class="figures">{"".join(cards)}</div>')
    if section.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
        parts.append(f'<ul class="notes">{items}</ul>')
    return [*parts, "</section>"]


def _verdict(verdict: Verdict) -> str:
    """Green or red, and in words for those who do not see which."""
    kind, words = ("holds", "✓ holds") if verdict.holds else ("fails", "✗ does not hold")
    note = f"<br>{escape(verdict.note)}" if verdict.note else ""
    return (
        f'<li class="{kind}"><b>{words}</b>: {escape(verdict.claim)}<br>'
        f"paper: {escape(verdict.paper)}; here: {escape(verdict.ours)}{note}</li>"
    )


def _table(table: Rows) -> str:
    header = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return (
        f'{title}<div class="scroll"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _card(figure: Figure, looks: Mapping[str, Style], number: int) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    picture = draw.svg(figure, looks, prefix=f"f{number}-")
    return f'<figure><div class="scroll">{picture}</div>{caption}</figure>'


def _write_at_once(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise PageError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
