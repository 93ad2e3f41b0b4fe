"""A wrong setting must be refused where it is made, with its name, its value and what would be right."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import MemoryStore, outcomes

from optireduce import Communicator, Config, ConfigError, ConnectError, connect


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
        ("bounded", "yes", "True or False"),
        ("bounded_min_bytes", -1, "0 to"),
        ("warmup_operations", 2, "from 3"),
        ("bound_percentile", 49.0, "50 to 100"),
        ("bound_percentile", 100.5, "50 to 100"),
        ("bound_least", 0.9, "1 to 10"),
        ("bound_least", 1.5, "bound_most = 1.4"),
        ("bound_most", 11.0, "1 to 10"),
        ("repair", None, "True or False"),
        ("absent_after", 0, "from 1"),
        ("min_ranks", -1, "0 to 65535"),
        ("quorum_seconds", -1.0, "0 to 1e+07"),
        ("operation_log", 7, "string"),
        ("resync_steps", -1, "from 0"),
        ("halt_after", 0, "from 1"),
        ("skip_above", 1.5, "0 to 1"),
        ("hadamard", "maybe", "'off', 'on', 'auto'"),
        ("late_repair", 1, "True or False"),
        ("auth", "none", "'auto', 'mac', 'token'"),
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
    samples |= {"bounded": "no", "bounded_min_bytes": "0", "warmup_operations": "3", "repair": "false"}
    samples |= {"bound_percentile": "99", "bound_least": "1", "bound_most": "2.5", "absent_after": "1"}
    samples |= {"min_ranks": "2", "quorum_seconds": "1.5", "operation_log": "/tmp/a,b-{rank}.jsonl"}
    samples |= {"late_repair": "0", "shuffle": "0", "resync_steps": "7", "resync_optimizer": "1"}
    samples |= {"hadamard": "on", "skip_above": "0.25", "halt_after": "3", "wire": "bf16", "auth": "mac"}
    samples |= {"multicast": "auto", "multicast_ttl": "2", "groups": "4", "warmup_steps": "9"}
    assert samples.keys() == {field.name for field in fields(Config)}
    config = Config.from_env({f"OPTIREDUCE_{name.upper()}": text for name, text in samples.items()})
    assert config == Config(
        late_repair=False,
        shuffle=False,
        resync_steps=7,
        resync_optimizer=True,
        hadamard="on",
        wire="bf16",
        auth="mac",
        multicast="auto",
        multicast_ttl=2,
        groups=4,
        warmup_steps=9,
        skip_above=0.25,
        halt_after=3,
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
        bounded=False,
        bounded_min_bytes=0,
        warmup_operations=3,
        bound_percentile=99.0,
        bound_least=1.0,
        bound_most=2.5,
        repair=False,
        absent_after=1,
        min_ranks=2,
        quorum_seconds=1.5,
        operation_log="/tmp/a,b-{rank}.jsonl",
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


@pytest.mark.parametrize(
    ("field", "value", "usual"),
    [
        ("bounded", False, True),
        ("bounded_min_bytes", 1, 65_536),
        ("warmup_operations", 30, 20),
        ("min_ranks", 3, 0),
        ("auth", "mac", "auto"),
    ],
)
def test_ranks_that_disagree_do_not_form_a_group(field: str, value: Any, usual: Any) -> None:
    store = MemoryStore()

    def join(rank: int) -> None:
        own = {field: value} if rank == 2 else {}
        Communicator(rank, 3, store, Config(interface="lo", timeout_seconds=20.0, **own))

    for error in outcomes(3, join):
        assert isinstance(error, ConnectError)
        assert str(error).startswith(f"{field} is {value!r} on rank 2 and {usual!r} on rank 0")
        assert error.ranks == (2,)


def test_a_small_group_does_not_need_more_ranks_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a setting for the whole world would make its subgroups fail."""
    given = []

    def engine(rank: int, size: int, address: str, auth: str, secret: bytes, options: Any, rows: Any) -> None:
        given.append(options.min_ranks)
        raise ConfigError("enough seen")

    monkeypatch.setattr(connect, "Engine", engine)
    monkeypatch.setattr(connect, "EngineOptions", SimpleNamespace)
    for min_ranks in (0, 1, 5):
        with pytest.raises(ConfigError, match="enough seen"):
            Communicator(0, 1, config=Config(min_ranks=min_ranks))
    assert given == [0, 1, 1]


def test_a_choice_from_the_environment_is_checked() -> None:
    with pytest.raises(ConfigError, match="hadamard = 'maybe' is not usable: it must be one of 'off'"):
        Config.from_env({"OPTIREDUCE_HADAMARD": "maybe"})
