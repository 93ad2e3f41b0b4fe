"""Figures as PNG files and as SVG for a page. matplotlib is optional and slow to import: drawing needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from .errors import PageError
from .figure import Figure
from .palette import Style, styles


def styles_of(figures: Iterable[Figure]) -> Mapping[str, Style]:
    """The look of every series of these figures, to be shared by all that are shown together."""
    return styles(series.name for figure in figures for series in figure.series)


def svg(figure: Figure, looks: Mapping[str, Style], prefix: str) -> str:
    """An ``<svg>`` element to be put into HTML. ``prefix`` begins all its ids: another one for each figure
    of a page. Equal figures give equal text."""
    _need_matplotlib()
    from .canvas import draw_svg

    return draw_svg(figure, looks, prefix)


def png(figure: Figure, looks: Mapping[str, Style], path: Path) -> None:
    """Write the figure as an image."""
    _need_matplotlib()
    from .canvas import draw_png

    try:
        draw_png(figure, looks, path)
    except OSError as error:
        raise PageError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _need_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise PageError("plots need matplotlib, which is not installed: pip install 'optireduce[plots]'")
