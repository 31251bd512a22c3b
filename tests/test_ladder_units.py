"""Quantities: exact parsing, one format everywhere, clear refusals."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.errors import InputError
from ladder.units import format_count, format_duration, format_flops, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e18", 3 * 10**18), ("1e23 FLOPs", 10**23), ("1.5T", 15 * 10**11), ("23B", 23 * 10**9), ("6.5e10", 65 * 10**9)],
)
def test_parse_quantity_is_exact(text: str, value: int) -> None:
    assert parse_quantity(text, unit="FLOPs") == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "three",
        "0",
        "-1e18",
        "1.5",
        "3e18 tokens",
        "1e",
        "nan",
        "1e-3",
        "3e18e2",
        "1e31",
        "1e999999999",
        "9e999999999999999999T",
    ],
)
def test_parse_quantity_refuses_what_is_no_positive_whole_number(text: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        parse_quantity(text, "--budget", unit="FLOPs")


@given(st.integers(min_value=1, max_value=10**27))
def test_parse_quantity_reads_back_any_integer(value: int) -> None:
    assert parse_quantity(str(value)) == value


@given(st.text(max_size=20))
def test_parse_quantity_never_fails_otherwise(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_quantity(text) > 0


@given(st.floats(min_value=1, max_value=1e26))
def test_formats_keep_three_digits(value: float) -> None:
    assert float(format_flops(value)) == pytest.approx(value, rel=5.1e-3)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    text = format_count(value)
    number = float(text[:-1]) * scale[text[-1]] if text[-1] in scale else float(text)
    assert number == pytest.approx(value, rel=5.1e-3)


def test_durations() -> None:
    assert format_duration(59.94) == "59.9 s"
    assert format_duration(90061) == "25 h 01 min"
    assert format_duration(float("nan")) == "unknown"
