"""Pictures must keep what matters, look the same every time, and never depend on what a series is called."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optireduce.page import draw
from optireduce.page.errors import PageError
from optireduce.page.figure import Figure, Series
from optireduce.page.palette import styles
from optireduce.page.thin import thin

SPREAD = Series("gloo", [1, 2, 3], [2.0, 3.0, 5.0], [1.0, 2.5, 5.5], [2.5, 4.0, 6.0])
PLAIN = Series("optireduce", [1, 2, 3], [1.0, 2.0, 2.5])


def figure(kind: str = "line", *series: Series) -> Figure:
    categories = ["zero", "one", "two", "three"] if kind == "bars" else ()
    shown = series or (SPREAD, PLAIN)
    return Figure("name", "A title", "size", "time", shown, kind, categories)  # type: ignore[arg-type]


def svg_of(shown: Figure, prefix: str = "f1-") -> str:
    return draw.svg(shown, draw.styles_of([shown]), prefix)


def texts_in(picture: str) -> list[str]:
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(picture).iter()]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=50, max_size=400),
    st.integers(10, 40),
)
def test_thinning_keeps_ends_order_and_extremes(y: list[float], most: int) -> None:
    series = Series("a", list(range(len(y))), y, [value - 1 for value in y], [value + 2 for value in y])
    thinned = thin(series, most)
    assert thinned.low is not None
    assert thinned.high is not None
    assert (thinned.x[0], thinned.x[-1]) == (0, len(y) - 1)
    assert list(thinned.x) == sorted(thinned.x)
    assert (min(thinned.y), max(thinned.y)) == (min(y), max(y))
    assert (min(thinned.low), max(thinned.high)) == (min(y) - 1, max(y) + 2)
    assert all(y[int(x)] == value for x, value in zip(thinned.x, thinned.y, strict=True))


def test_a_long_curve_makes_a_small_picture() -> None:
    y = np.random.default_rng(1).normal(size=100_000)
    y[54_321] = 50
    series = Series("a", range(100_000), y.tolist())
    assert len(thin(series).x) <= 2_002
    assert 50 in thin(series).y
    assert len(svg_of(figure("line", series))) < 200_000
    assert thin(PLAIN) is PLAIN


def test_colours_do_not_change_with_company() -> None:
    alone, together = styles(["gloo"]), styles(["nccl", "optireduce", "gloo", "nccl", "mine"])
    assert alone["gloo"] == together["gloo"]
    assert styles(["optireduce"])["optireduce"] == together["optireduce"]
    assert len({style.colour for style in together.values()}) == 4


def test_many_series_can_still_be_told_apart() -> None:
    looks = styles(f"run {number}" for number in range(20))
    assert len(set(looks.values())) == 20


@pytest.mark.parametrize("kind", ["line", "points", "bars"])
def test_every_kind_shows_its_series_as_text_and_colour(kind: str) -> None:
    picture = svg_of(figure(kind))
    texts = texts_in(picture)
    for word in ("A title", "size", "time", "gloo", "optireduce"):
        assert word in texts
    assert picture.lower().count("#d55e00") >= 2  # legend and data
    assert picture.lower().count("#0072b2") >= 2
    assert ("two" in texts) == (kind == "bars")


def test_runs_of_one_name_look_alike_and_share_a_line_of_the_legend() -> None:
    once = svg_of(figure("line", PLAIN))
    twice = svg_of(figure("line", PLAIN, Series(PLAIN.name, [1, 2, 3], [2.0, 3.0, 4.0])))
    assert texts_in(twice).count(PLAIN.name) == texts_in(once).count(PLAIN.name)
    assert twice.lower().count("#0072b2") == once.lower().count("#0072b2") + 1


def test_spread_is_drawn() -> None:
    band = re.compile(r"fill-opacity: 0\.2|opacity: 0\.2")
    assert band.search(svg_of(figure("line", SPREAD)))
    assert not band.search(svg_of(figure("line", PLAIN)))
    for kind in ("points", "bars"):
        with_bars = svg_of(figure(kind, SPREAD))
        assert len(with_bars) > len(svg_of(figure(kind, Series("gloo", SPREAD.x, SPREAD.y))))


def test_equal_figures_give_equal_text_without_a_date() -> None:
    first, second = svg_of(figure()), svg_of(figure())
    assert first == second
    assert "<metadata" not in first


def test_ids_of_two_pictures_do_not_meet() -> None:
    first, second = svg_of(figure(), "f1-"), svg_of(figure(), "f2-")
    ids = [set(re.findall(r'\bid="([^"]*)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', first)) <= ids[0]


@pytest.mark.filterwarnings("ignore:Glyph .* missing")  # of images; a browser has its own fonts
@pytest.mark.parametrize("name", ["_hidden", "$a$b", "$\\frac", '<b id="x">&', "x" * 500, "日本"])
def test_any_name_can_be_drawn(name: str) -> None:
    root = ElementTree.fromstring(svg_of(figure("line", Series(name, [1], [1.0]))))
    texts = "\n".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert name[:50] in texts


def test_logarithmic_axes() -> None:
    flat = Figure("n", "t", "x", "y", [Series("a", [1, 10, 1000], [1e-3, 1.0, 1e3])])
    pictures = [flat, replace(flat, x_log=True), replace(flat, y_log=True)]
    assert len(set(map(svg_of, pictures))) == 3
    nothing_positive = Figure("n", "t", "x", "y", [Series("a", [0], [0.0])], x_log=True, y_log=True)
    assert "<svg" in svg_of(nothing_positive)


def test_png_shows_the_colours(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    shown = figure()
    draw.png(shown, draw.styles_of([shown]), path)
    image = np.rint(matplotlib.image.imread(path)[:, :, :3] * 255).astype(int)
    assert image.shape[:2] == (546, 910)
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        assert (image == colour).all(axis=2).sum() > 200


def test_png_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"cannot write .*a\.png"):
        draw.png(figure(), draw.styles_of([figure()]), tmp_path / "none" / "a.png")


def test_drawing_leaves_the_users_settings_alone() -> None:
    before = matplotlib.rcParams.copy()
    svg_of(figure())
    assert matplotlib.rcParams.copy() == before


def test_the_users_matplotlibrc_changes_nothing() -> None:
    expected = svg_of(figure())
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        assert svg_of(figure()) == expected


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PageError, match=r"pip install 'optireduce\[plots\]'"):
        svg_of(figure())
