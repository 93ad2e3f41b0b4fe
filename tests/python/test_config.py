"""A wrong setting must be refused where it is made, with its name, its value and what would be right."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
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
        ("bounded", "yes", "True, False or 'all'"),
        ("bounded", 1, "True, False or 'all'"),
        ("shuffle", "all", "True or False"),
        ("warmup_operations", 2, "from 3"),
        ("bound_percentile", 49.0, "50 to 100"),
        ("bound_percentile", 100.5, "50 to 100"),
        ("bound_least", 0.9, "1 to 10"),
        ("bound_least", 1.5, "bound_most = 1.4"),
        ("bound_most", 11.0, "1 to 10"),
        ("min_ranks", -1, "0 to 65535"),
        ("quorum_seconds", -1.0, "0 to 1e+07"),
        ("rejoin_pause_seconds", 61.0, "0 to 60"),
        ("operation_log", 7, "string"),
        ("halt_after", 0, "from 1"),
        ("skip_above", 1.5, "0 to 1"),
        ("hadamard", "maybe", "'off', 'on', 'auto'"),
        ("hadamard", "on", "delivery = 'carry'"),
        ("auth", "none", "'auto', 'mac', 'token'"),
        ("delivery", "lossy", "'carry', 'best-effort'"),
        ("max_lag", 0, "from 1"),
        ("exclude_at_most", 1.5, "0 to 1"),
        ("exact_silence_seconds", 0.0, "0.05"),
        ("log_bytes", 0, "65536"),
        ("groups", 0, "'auto' or an integer from 1"),
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
    samples |= {"bounded": "no", "delivery": "best-effort", "warmup_operations": "3"}
    samples |= {"bound_percentile": "99", "bound_least": "1", "bound_most": "2.5", "max_lag": "5"}
    samples |= {"min_ranks": "2", "quorum_seconds": "1.5", "operation_log": "/tmp/a,b-{rank}.jsonl"}
    samples |= {"shuffle": "0", "log_bytes": "100000", "exclude_at_most": "0.1", "exact_silence_seconds": "3"}
    samples |= {"hadamard": "on", "skip_above": "0.25", "halt_after": "3", "wire": "bf16", "auth": "mac"}
    samples |= {"check_parameters": "0", "mend_differences": "1"}
    samples |= {"multicast": "auto", "multicast_ttl": "2", "groups": "4", "rejoin_pause_seconds": "2.5"}
    assert samples.keys() == {field.name for field in fields(Config)}
    config = Config.from_env({f"OPTIREDUCE_{name.upper()}": text for name, text in samples.items()})
    assert config == Config(
        shuffle=False,
        check_parameters=False,
        mend_differences=True,
        delivery="best-effort",
        log_bytes=100_000,
        max_lag=5,
        exclude_at_most=0.1,
        exact_silence_seconds=3.0,
        hadamard="on",
        wire="bf16",
        auth="mac",
        multicast="auto",
        multicast_ttl=2,
        groups=4,
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
        warmup_operations=3,
        bound_percentile=99.0,
        bound_least=1.0,
        bound_most=2.5,
        min_ranks=2,
        quorum_seconds=1.5,
        rejoin_pause_seconds=2.5,
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
        ("delivery", "best-effort", "carry"),
        ("max_lag", 3, 2),
        ("warmup_operations", 30, 20),
        ("min_ranks", 3, 0),
        ("auth", "mac", "auto"),
    ],
)
def test_ranks_that_disagree_do_not_form_a_group(field: str, value: Any, usual: Any) -> None:
    store = MemoryStore()

    def join(rank: int) -> None:
        own = {field: value} if rank == 2 else {}
        Communicator(rank, 3, store, Config(interface="lo", timeout_seconds=120.0, **own))

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
    for min_ranks in (0, 1, 5):
        with pytest.raises(ConfigError, match="enough seen"):
            Communicator(0, 1, config=Config(min_ranks=min_ranks))
    assert given == [0, 1, 1]


def test_a_choice_from_the_environment_is_checked() -> None:
    with pytest.raises(ConfigError, match="hadamard = 'maybe' is not usable: it must be one of 'off'"):
        Config.from_env({"OPTIREDUCE_HADAMARD": "maybe"})


GONE = ["bounded_min_bytes", "warmup_steps", "repair", "late_repair", "absent_after"]
GONE += ["resync_steps", "resync_optimizer"]


@pytest.mark.parametrize("name", GONE)
def test_a_setting_that_is_gone_is_refused_with_the_reason(name: str) -> None:
    variable = f"OPTIREDUCE_{name.upper()}"
    with pytest.raises(ConfigError, match=f"^{name} is no longer a setting: .+; remove it$"):
        Config(**{name: 1})
    with pytest.raises(ConfigError, match=f"^{name} is no longer a setting: "):
        Config.from_env({}, **{name: 1})
    with pytest.raises(ConfigError, match=f"^{variable} is no longer a setting: .+; remove it$"):
        Config.from_env({variable: "1"})
    assert Config.from_env({variable: ""}) == Config()


def test_a_name_that_never_was_a_setting_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'windows'"):
        Config(windows=3)  # type: ignore[call-arg]


def test_a_config_can_be_copied_and_sent() -> None:
    config = Config(mtu=1400)
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert replace(config, wire="bf16") == Config(mtu=1400, wire="bf16")
