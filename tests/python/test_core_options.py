"""The Python settings mirror the core: a default that drifts apart would change what its callers get."""

from __future__ import annotations

import dataclasses
from typing import Any

from optireduce import Config, _core
from optireduce.connect import engine_options


def core_fields() -> list[str]:
    """Those that are settings: whether the membership is fixed, and how often a process was restarted, follow
    from what a group is for."""
    no_settings = {"fixed_membership", "incarnation"}
    return [name for name in dir(_core.EngineOptions) if name[0] != "_" and name not in no_settings]


def test_defaults_of_config_are_the_core_s() -> None:
    config, core = Config(), _core.EngineOptions()
    assert {name: getattr(config, name) for name in core_fields()} == {
        name: getattr(core, name) for name in core_fields()
    }


# A value that is allowed and not the default, where the rule below gives none.
ANOTHER: dict[str, Any] = {"bound_percentile": 75.0, "bound_least": 1.1, "bound_most": 2.5, "min_ranks": 3}
ANOTHER |= {"delivery": "best-effort", "max_lag": 5}


def another(name: str, value: Any) -> Any:
    """Some allowed value of the setting that is not ``value``."""
    if name in ANOTHER:
        return ANOTHER[name]
    if isinstance(value, bool):
        return not value
    return 0.5 if isinstance(value, float) else value + 65_536


def test_every_option_of_the_core_is_passed_on() -> None:
    defaults = dataclasses.asdict(Config())
    others = {name: another(name, defaults[name]) for name in core_fields()}
    assert all(others[name] != defaults[name] for name in others)
    options = engine_options(Config(**others))
    assert {name: getattr(options, name) for name in core_fields()} == others
