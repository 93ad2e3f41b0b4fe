"""Reading and writing sizes: a benchmark of the wrong size would look like a result."""

from __future__ import annotations

import pytest

from optireduce.cli.backends import parse_backends
from optireduce.cli.errors import UsageError
from optireduce.cli.units import format_seconds, format_size, parse_count, parse_list, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("64K", 65_536),
        ("64k", 65_536),
        ("25M", 26_214_400),
        ("1.5K", 1536),
        ("2G", 2 << 30),
        ("64KiB", 65_536),
        (" 1MB ", 1 << 20),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text, "--sizes") == size


@pytest.mark.parametrize("text", ["", "0", "-4K", "K", "3Q", "1.0001K", "4K4", "nan", "1e3"])
def test_a_bad_size_is_named_with_its_option(text: str) -> None:
    with pytest.raises(UsageError, match=f"--sizes: {text!r} is not a size"):
        parse_size(text, "--sizes")


@pytest.mark.parametrize("size", [1, 1000, 1024, 65_536, 1 << 20, 25 << 20, 3 << 30, (1 << 20) + 4])
def test_a_formatted_size_reads_back_as_itself(size: int) -> None:
    assert parse_size(format_size(size), "--sizes") == size


def test_sizes_are_spelled_short() -> None:
    assert [format_size(size) for size in (1000, 65_536, 25 << 20, 1 << 30)] == ["1000", "64K", "25M", "1G"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (62.14e-6, "62.1 us"),
        (4.353e-3, "4.35 ms"),
        (0.0999e-3, "99.9 us"),
        (123e-3, "123 ms"),
        (0.9996, "1.00 s"),
        (12.34, "12.3 s"),
    ],
)
def test_times_have_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("text", ["", "x", "1", "-2", "2.5"])
def test_a_count_below_the_minimum_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--nproc.*whole number of at least 2"):
        parse_count(text, "--nproc", minimum=2)


def test_lists_keep_their_order() -> None:
    assert parse_list("3, 1,2", "--x", int) == (3, 1, 2)


@pytest.mark.parametrize(
    ("text", "complaint"), [("", "empty item"), ("a,,b", "empty item"), ("a,b,a", "'a' twice")]
)
def test_empty_and_repeated_items_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_list(text, "--x", str)


def test_the_same_size_spelled_twice_is_a_repetition() -> None:
    with pytest.raises(UsageError, match="'1024K' twice"):
        parse_list("1M,1024K", "--sizes", lambda text: parse_size(text, "--sizes"))


def test_backends_are_lower_case_and_known() -> None:
    assert parse_backends("Gloo,optireduce") == ("gloo", "optireduce")
    assert parse_backends("optireduce:token,optireduce:mac") == ("optireduce:token", "optireduce:mac")


@pytest.mark.parametrize("name", ["glue", "nccl", "undefined"])
def test_an_unusable_backend_is_named_with_what_there_is(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is not a backend.*gloo, optireduce"):
        parse_backends(f"gloo,{name}")
