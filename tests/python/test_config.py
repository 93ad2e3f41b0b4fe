"""A wrong setting must be refused where it is made, with its name, its value and what would be right."""

from __future__ import annotations

from dataclasses import fields

import pytest

from optireduce import Config, ConfigError


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("window_bytes", 0, "4096"),
        ("window_bytes", 1.5, "integer"),
        ("window_bytes", True, "integer"),
        ("mtu", 100, "576"),
        ("mtu", 70_000, "65536"),
        ("receive_buffer_bytes", -1, "16384"),
        ("early_bytes", "many", "integer"),
        ("spin_seconds", 2.0, "0 to 1"),
        ("timeout_seconds", 0.0, "0.001"),
        ("timeout_seconds", float("nan"), "number"),
        ("connect_timeout_seconds", None, "number"),
        ("linger_seconds", -0.1, "0 to 600"),
        ("use_gso", 1, "True or False"),
        ("drop", 1.0, "0.95"),
        ("duplicate", 1.5, "0 to 1"),
        ("reorder", -0.5, "0 to 1"),
        ("impairment_seed", -1, "integer"),
        ("interface", None, "string"),
    ],
)
def test_bad_value_is_named(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{field: value})  # type: ignore[arg-type]
    text = str(caught.value)
    assert field in text
    assert repr(value) in text
    assert expected in text


def test_every_field_is_read_from_its_variable() -> None:
    samples = {"interface": "eth7", "use_gso": "off", "use_gro": "0", "timeout_seconds": "7.5", "mtu": "1400"}
    samples |= {"drop": "0.25", "duplicate": "0.125", "reorder": "0.5", "spin_seconds": "0.001"}
    samples |= {"window_bytes": "8192", "receive_buffer_bytes": "20000", "early_bytes": "70000"}
    samples |= {"connect_timeout_seconds": "3", "linger_seconds": "4", "impairment_seed": "9"}
    assert samples.keys() == {field.name for field in fields(Config)}
    config = Config.from_env({f"OPTIREDUCE_{name.upper()}": text for name, text in samples.items()})
    assert config == Config(
        interface="eth7",
        use_gso=False,
        use_gro=False,
        timeout_seconds=7.5,
        mtu=1400,
        drop=0.25,
        duplicate=0.125,
        reorder=0.5,
        spin_seconds=0.001,
        window_bytes=8192,
        receive_buffer_bytes=20000,
        early_bytes=70000,
        connect_timeout_seconds=3.0,
        linger_seconds=4.0,
        impairment_seed=9,
    )


def test_explicit_argument_wins_over_the_environment() -> None:
    environ = {"OPTIREDUCE_MTU": "1400", "OPTIREDUCE_WINDOW_BYTES": "8192"}
    config = Config.from_env(environ, mtu=9000)
    assert (config.mtu, config.window_bytes) == (9000, 8192)


@pytest.mark.parametrize(
    ("environ", "interface"),
    [
        ({"OPTIREDUCE_INTERFACE": "a", "OPTIREDUCE_SOCKET_IFNAME": "b", "GLOO_SOCKET_IFNAME": "c"}, "a"),
        ({"OPTIREDUCE_SOCKET_IFNAME": "b", "GLOO_SOCKET_IFNAME": "c"}, "b"),
        ({"GLOO_SOCKET_IFNAME": "c,d"}, "c"),
        ({"GLOO_SOCKET_IFNAME": ""}, ""),
    ],
)
def test_interface_variables_in_order(environ: dict[str, str], interface: str) -> None:
    assert Config.from_env(environ).interface == interface


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OPTIREDUCE_MTU", "big"),
        ("OPTIREDUCE_MTU", "3"),
        ("OPTIREDUCE_USE_GSO", "perhaps"),
        ("OPTIREDUCE_DROP", "2"),
    ],
)
def test_bad_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({variable: text})
    assert variable in str(caught.value)
    assert text in str(caught.value)


def test_unknown_setting_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'windows'.*window_bytes"):
        Config.from_env({}, windows=3)


def test_config_cannot_change_behind_the_groups_back() -> None:
    with pytest.raises(AttributeError):
        Config().mtu = 9000  # type: ignore[misc]
