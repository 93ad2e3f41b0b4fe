"""The page must be whole in itself, and no text in it can become more than text."""

from __future__ import annotations

import os
import re
import stat
from html.parser import HTMLParser
from pathlib import Path

import pytest

from optireduce.page.errors import PageError
from optireduce.page.facts import machine_facts
from optireduce.page.figure import Figure, Series
from optireduce.page.page import Section, render_page, write_page
from optireduce.page.parts import Rows, Verdict

EVIL = '<script>alert("1")</script>\'"&'


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data: str) -> None:
        self.text += data


def full_section(text: str) -> Section:
    series = [Series(text, [0, 1], [1.0, 2.0])]
    return Section(
        title=text,
        text=text,
        tables=[Rows(text, [text], [[text]])],
        figures=[
            Figure("a", text, text, text, series, caption=text),
            Figure("b", text, text, text, series, "bars", [text, text], caption=text),
        ],
        verdicts=[Verdict(text, text, text, True, text)],
        notes=[text],
    )


def test_no_text_can_break_the_page() -> None:
    harmless = Reader(render_page("x", [full_section("x")], {"x": "x"}))
    evil = Reader(render_page(EVIL, [full_section(EVIL)], {EVIL: EVIL}))
    assert "script" not in evil.tags
    assert [tag for tag in evil.tags if tag not in ("path", "g", "use", "defs")] == [
        tag for tag in harmless.tags if tag not in ("path", "g", "use", "defs")
    ]
    assert not [name for name, _ in evil.attributes if name.startswith("on")]
    assert ("aria-label", EVIL) in evil.attributes
    assert evil.text.count(EVIL) >= 20


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = render_page("x", [full_section("x")], machine_facts())
    without_namespaces = re.sub(r'\bxmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//[a-z]|@import|\burl\((?!#)", without_namespaces)
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert all(value and value.startswith("#") for name, value in reader.attributes if name.endswith("href"))


def test_ids_are_unique_in_a_page() -> None:
    reader = Reader(render_page("x", [full_section("x"), full_section("y")], {}))
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


def test_a_verdict_is_said_in_words_too() -> None:
    verdicts = [
        Verdict("faster", "2 x", "3 x", True),
        Verdict("smaller", "half", "same", False, "other data"),
    ]
    reader = Reader(render_page("x", [Section("s", verdicts=verdicts)], {}))
    assert "✓ holds: faster" in reader.text
    assert "✗ does not hold: smaller" in reader.text
    assert "paper: half; here: same" in reader.text
    assert "other data" in reader.text
    assert {("class", "holds"), ("class", "fails")} <= set(reader.attributes)


def test_a_series_has_one_colour_in_all_sections() -> None:
    def plot(*names: str) -> Section:
        return Section(
            "s", figures=[Figure("a", "t", "x", "y", [Series(n, [0, 1], [1.0, 2.0]) for n in names])]
        )

    page = render_page("x", [plot("first", "mine"), plot("mine")], {})
    first, second = page.split("<section>")[1:]
    in_first, in_second = (set(re.findall(r"stroke: (#[0-9a-f]{6})", part)) for part in (first, second))
    series_colours = {"#009e73", "#cc79a7"}
    assert in_first & series_colours == series_colours
    assert in_second & series_colours == {"#cc79a7"}


def test_writing_replaces_the_page_at_once(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with path.open() as reader:
        write_page(path, "new", [], {})
        assert reader.read() == "old"  # not changed under a reader's eyes
    assert "<h1>new</h1>" in path.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["report.html"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(PageError, match=r"cannot write .*folder"):
        write_page(tmp_path / "folder", "x", [], {})
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(PageError, match=r"cannot write .*nowhere"):
        write_page(tmp_path / "nowhere" / "a.html", "x", [], {})


def test_facts_name_machine_versions_and_date() -> None:
    facts = machine_facts()
    assert list(facts) == ["CPU", "cores", os.uname().sysname, "Python", "PyTorch", "optireduce", "date"]
    assert all(facts.values())
    assert int(facts["cores"]) >= 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", facts["date"])
