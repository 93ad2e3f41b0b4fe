"""The Python settings mirror the core: a default that drifts apart would change what its callers get."""

from __future__ import annotations

import dataclasses

from optireduce import Config, _core
from optireduce.connect import engine_options


def core_fields() -> list[str]:
    return [name for name in dir(_core.EngineOptions) if not name.startswith("_")]


def test_defaults_of_config_are_the_core_s() -> None:
    config, core = Config(), _core.EngineOptions()
    assert {name: getattr(config, name) for name in core_fields()} == {
        name: getattr(core, name) for name in core_fields()
    }


def test_every_option_of_the_core_is_passed_on() -> None:
    other = {
        name: (not value if isinstance(value, bool) else 0.5 if isinstance(value, float) else value + 65_536)
        for name, value in dataclasses.asdict(Config()).items()
        if name in core_fields()
    }
    options = engine_options(Config(**other))
    assert {name: getattr(options, name) for name in core_fields()} == other
