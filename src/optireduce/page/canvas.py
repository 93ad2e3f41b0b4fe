"""The only file that knows matplotlib. No pyplot: neither a display nor a figure that outlives the call."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from .figure import Figure, Series
from .palette import Style
from .thin import thin

_INCHES = (7.0, 4.2)
_DOTS_PER_INCH = 130
_LONGEST_NAME = 60  # in the legend
_LEGEND_LETTERS = 84  # in one line of it
_MOST_TICKS = 24
_AXIS_LETTERS = 80  # in the labels below the bars; more are slanted
_BARS_WIDTH = 0.8  # of all series together, where 1 is the distance of categories
_LEAST_CATEGORIES = 4  # there is room for; a single bar would be a wall
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "optireduce",  # ids do not change from run to run
    "text.parse_math": False,  # a $ in a name is a dollar
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "grid.color": "#dddddd",
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_TAG = re.compile(r"<[^>]*>")  # < and > in texts and attributes are escaped
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)')

_Draw = Callable[[Axes, Figure, Mapping[str, Style]], None]


def draw_svg(figure: Figure, looks: Mapping[str, Style], prefix: str) -> str:
    """See ``draw.svg``."""
    text = io.StringIO()
    with _drawn(figure, looks) as canvas:
        canvas.savefig(text, format="svg", metadata=_NO_METADATA)
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = _TAG.sub(lambda tag: _REFERENCE.sub(rf"\g<1>{prefix}", tag[0]), element)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)


def draw_png(figure: Figure, looks: Mapping[str, Style], path: Path) -> None:
    """See ``draw.png``."""
    with _drawn(figure, looks) as canvas:
        canvas.savefig(path, format="png")


@contextmanager
def _drawn(figure: Figure, looks: Mapping[str, Style]) -> Iterator[Canvas]:
    with matplotlib.rc_context(_settings()):
        canvas = Canvas(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        axes = canvas.add_subplot()
        axes.set_title(figure.title)
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(figure.y_label)
        axes.grid(True, axis="y" if figure.kind == "bars" else "both")
        _scale(axes, figure)
        _KINDS[figure.kind](axes, figure, looks)
        _legend(canvas, axes)
        yield canvas


def _settings() -> dict[Any, Any]:
    """Matplotlib's own defaults under ours, whatever the user's matplotlibrc says. Not the backend: setting
    it would import pyplot."""
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    return defaults | _SETTINGS


def _scale(axes: Axes, figure: Figure) -> None:
    """A logarithmic axis needs something positive to show."""
    if figure.x_log and any(value > 0 for series in figure.series for value in series.x):
        axes.set_xscale("log")
    if figure.y_log and any(value > 0 for series in figure.series for value in series.y):
        axes.set_yscale("log")


def _lines(axes: Axes, figure: Figure, looks: Mapping[str, Style]) -> None:
    for series in map(thin, figure.series):
        look = looks[series.name]
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=look.colour, alpha=0.2, linewidth=0)
        marker = look.marker if len(series.x) == 1 else ""  # a line of one point would not be seen
        axes.plot(
            series.x,
            series.y,
            color=look.colour,
            linestyle=look.dashes,
            marker=marker,
            linewidth=1.8,
            label=_legend_name(series),
        )


def _points(axes: Axes, figure: Figure, looks: Mapping[str, Style]) -> None:
    for series in map(thin, figure.series):
        look = looks[series.name]
        axes.errorbar(
            series.x,
            series.y,
            yerr=_spread(series),
            color=look.colour,
            fmt=look.marker,
            markersize=5,
            capsize=3,
            label=_legend_name(series),
        )


def _bars(axes: Axes, figure: Figure, looks: Mapping[str, Style]) -> None:
    width = _BARS_WIDTH / max(1, len(figure.series))
    for index, series in enumerate(figure.series):
        shift = (index - (len(figure.series) - 1) / 2) * width
        axes.bar(
            [place + shift for place in series.x],
            series.y,
            width,
            yerr=_spread(series),
            capsize=2,
            color=looks[series.name].colour,
            label=_legend_name(series),
        )
    middle, half = (len(figure.categories) - 1) / 2, max(len(figure.categories), _LEAST_CATEGORIES) / 2
    axes.set_xlim(middle - half, middle + half)
    _category_ticks(axes, figure.categories)


_KINDS: dict[str, _Draw] = {"line": _lines, "points": _points, "bars": _bars}


def _category_ticks(axes: Axes, categories: Sequence[str]) -> None:
    every = -(-len(categories) // _MOST_TICKS) or 1
    shown = categories[::every]
    slanted = sum(map(len, shown)) > _AXIS_LETTERS
    axes.set_xticks(
        range(0, len(categories), every),
        shown,
        rotation=30 if slanted else 0,
        ha="right" if slanted else "center",
    )


def _spread(series: Series) -> npt.NDArray[np.float64] | None:
    """Error bars as matplotlib wants them: distances from y, never negative."""
    if series.low is None or series.high is None:
        return None
    y = np.asarray(series.y, dtype=float)
    low, high = np.asarray(series.low, dtype=float), np.asarray(series.high, dtype=float)
    return np.stack([y - low, high - y]).clip(min=0.0)


def _legend_name(series: Series) -> str:
    name = series.name if len(series.name) <= _LONGEST_NAME else series.name[: _LONGEST_NAME - 1] + "…"
    return f" {name}"  # matplotlib would leave out a name that begins with an underscore


def _legend(canvas: Canvas, axes: Axes) -> None:
    """Below the axes, where it hides nothing; each name once."""
    handles, names = axes.get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    if entries:
        columns = max(1, min(len(entries), _LEGEND_LETTERS // (max(map(len, entries)) + 6)))
        canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
