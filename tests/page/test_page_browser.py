"""The page as a real browser shows it: curves are there in their colours, it fits laptop and phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pytest
from synthetic_runs import write_run

from optireduce.page.facts import machine_facts
from optireduce.page.page import Section, write_page
from optireduce.page.parts import Rows, Verdict
from optireduce.page.run_sections import run_sections
from optireduce.page.runs import read_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip
LAPTOP, PHONE, HEIGHT = 1366, 400, 6000
GLOO, OPTIREDUCE = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)
GREEN, RED, WHITE = (0x11, 0x70, 0x3C), (0xB3, 0x26, 0x1E), (0xFF, 0xFF, 0xFF)

# The page has no script; one beside it may look into a frame whose text it was given. `wide` are elements
# that stick out of the window and do not lie in a box that scrolls by itself.
MEASURE = """<!DOCTYPE html><style>* {{ margin: 0; border: 0 }} iframe {{ display: block }}</style>
<iframe width="{width}" height="{height}" srcdoc="{page}"></iframe><pre></pre><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter((element) =>
    element.getBoundingClientRect().right > {width} + 1 && !element.parentElement.closest(".scroll"));
  const boxes = Object.fromEntries([...page.querySelectorAll("figure svg")].map((picture) => {{
    const box = picture.closest("figure").getBoundingClientRect();
    return [picture.getAttribute("aria-label"), [box.left, box.top, box.right, box.bottom]];
  }}));
  document.querySelector("pre").textContent = JSON.stringify({{
    scroll_width: root.scrollWidth, height: page.body.scrollHeight,
    wide: wide.map((one) => one.outerHTML), boxes,
  }});
}};
</script>"""


@dataclass(frozen=True)
class Layout:
    """Where things are, in pixels."""

    scroll_width: int
    height: int
    wide: list[str]
    boxes: dict[str, list[float]]  # of plots: left, top, right, bottom


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    runs = [write_run(folder / name, name) for name in ("gloo", "optireduce")]
    sections = run_sections([read_run(run.name, sorted(run.glob("*.jsonl"))) for run in runs])
    verdicts = [
        Verdict("short tails", "2 x", "3 x", True),
        Verdict("any network", "yes", "no", False, "why " * 40),
    ]
    table = Rows("Many columns", [f"column {n}" for n in range(30)], [["123.45 ms"] * 30])
    sections.append(Section("x" * 150, "word " * 100, [table], verdicts=verdicts, notes=["/path" * 60]))
    write_page(folder / "report.html", "Training " + "y" * 100, sections, machine_facts())
    return folder / "report.html"


def browse(tmp_path: Path, *arguments: str) -> str:
    assert BROWSER is not None
    command = (BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stdout


def measure(page: Path, tmp_path: Path, width: int) -> Layout:
    wrapper = tmp_path / "measure.html"
    text = html.escape(page.read_text(encoding="utf-8"))
    wrapper.write_text(MEASURE.format(width=width, height=HEIGHT, page=text), encoding="utf-8")
    found = re.search(r"<pre>(.+?)</pre>", browse(tmp_path, "--dump-dom", wrapper.as_uri()), re.DOTALL)
    assert found, "the browser did not run the measuring script"
    return Layout(**json.loads(html.unescape(found[1])))


def screenshot(page: Path, tmp_path: Path, *arguments: str) -> npt.NDArray[Any]:
    path = tmp_path / "page.png"
    browse(tmp_path, f"--window-size={LAPTOP},{HEIGHT}", f"--screenshot={path}", *arguments, page.as_uri())
    return np.rint(matplotlib.image.imread(path)[:, :, :3] * 255).astype(int)


def count(image: npt.NDArray[Any], colour: tuple[int, int, int]) -> int:
    return int((np.abs(image - colour) <= 3).all(axis=2).sum())


def card(image: npt.NDArray[Any], layout: Layout, title: str) -> npt.NDArray[Any]:
    left, top, right, bottom = (round(edge) for edge in layout.boxes[title])
    return image[top + 2 : bottom - 2, left + 2 : right - 2]


def test_curves_are_seen_in_their_colours(page: Path, tmp_path: Path) -> None:
    layout = measure(page, tmp_path, LAPTOP)
    image = screenshot(page, tmp_path)
    assert layout.height < HEIGHT, "the screenshot does not show the whole page"
    for title in ("Step times", "Held-out loss", "Training loss"):
        assert count(card(image, layout, title), GLOO) > 150, title
        assert count(card(image, layout, title), OPTIREDUCE) > 150, title
    for title in ("Missed deadlines", "Excluded contributions by rank", "Late ranks"):
        assert count(card(image, layout, title), OPTIREDUCE) > 150, title
        assert count(card(image, layout, title), GLOO) == 0, title
    assert count(image, GREEN) > 100
    assert count(image, RED) > 100


def test_in_the_dark_plots_stay_on_white_cards(page: Path, tmp_path: Path) -> None:
    layout = measure(page, tmp_path, LAPTOP)
    image = screenshot(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert image[5, 5].max() < 60, "the page itself is not dark"
    for title in layout.boxes:
        plot = card(image, layout, title)
        assert count(plot, WHITE) > 0.6 * plot.shape[0] * plot.shape[1], title
    assert count(card(image, layout, "Step times"), GLOO) > 150


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_nothing_is_wider_than_the_window(page: Path, tmp_path: Path, width: int) -> None:
    layout = measure(page, tmp_path, width)
    assert layout.wide == []
    assert layout.scroll_width == width
    assert len(layout.boxes) == 9
