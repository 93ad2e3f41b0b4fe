"""Settings of optireduce as the user types them: ``field=value``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from optireduce.cli.errors import UsageError

from .plan import GLOO, OURS, System


def parse_settings(texts: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """``["window_bytes=65536", "repair=False"]`` as a dict; whether the fields exist is for Config to say."""
    return dict(_split(text, option) for text in texts)


def competitors(settings: dict[str, Any], frontier: str | None) -> tuple[System, ...]:
    """Gloo and ours; with ``field=value,value...`` ours once for each value."""
    if frontier is None:
        return System(GLOO), System(OURS, settings)
    field, values = _split_text(frontier, "--frontier")
    varied = [(value, settings | {field: _value(value)}) for value in values.split(",")]
    return System(GLOO), *(System(f"{field}={value}", changed) for value, changed in varied)


def _split(text: str, option: str) -> tuple[str, Any]:
    field, value = _split_text(text, option)
    return field, _value(value)


def _split_text(text: str, option: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not field.isidentifier() or not value:
        raise UsageError(
            f"{option}: {text!r} is not valid; write field=value, for example window_bytes=65536"
        )
    return field, value


def _value(text: str) -> Any:
    """A Python literal where it is one (numbers, True, None), else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
