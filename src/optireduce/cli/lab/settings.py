"""Settings of optireduce as the user types them: ``field=value``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from ...config import Config
from ...trials.allreduce.plan import GLOO, MPI, MULTICAST, OURS, SYSTEMS, System, mpi_is_installed
from ..errors import UsageError
from ..units import parse_list


def parse_settings(texts: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """``["window_bytes=65536", "max_lag=3"]`` as a dict; whether the fields exist is for Config to say."""
    return dict(_split(text, option) for text in texts)


def chosen_systems(names: str, settings: dict[str, Any]) -> tuple[System, ...]:
    """Those named; the settings are for ours, with and without multicast."""
    systems = parse_list(names, "--systems", _find_system)
    return tuple(
        System(system.name, settings | dict(system.settings)) if system.name in (OURS, MULTICAST) else system
        for system in systems
    )


def frontier_systems(frontier: str, settings: dict[str, Any]) -> tuple[System, ...]:
    """Gloo, and ours once for each value of ``field=value,value...``."""
    field, values = _split_text(frontier, "--frontier")
    varied = [(value, settings | {field: _value(value)}) for value in values.split(",")]
    return System(GLOO), *(System(f"{field}={value}", changed) for value, changed in varied)


def check_settings(systems: Sequence[System]) -> None:
    """Before any process starts: a field that does not exist would fail in every rank."""
    for system in systems:
        try:
            Config(**system.settings)
        except TypeError as error:
            raise UsageError(f"--set/--frontier: {error}") from error


def default_systems() -> str:
    """All that this machine has; ours once."""
    present = {MPI: mpi_is_installed(), MULTICAST: False}
    return ",".join(name for name in SYSTEMS if present.get(name, True))


def _find_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UsageError(f"--systems: {name!r} is not one of {', '.join(SYSTEMS)}")
    if name == MPI and not mpi_is_installed():
        raise UsageError("--systems: 'mpi' is not installed here: pip install 'optireduce[mpi]'")
    return SYSTEMS[name]


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
