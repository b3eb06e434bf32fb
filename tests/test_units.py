"""Durations, sizes and times as people write them."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.units import (
    AGO_PATTERN,
    DURATION_PATTERN,
    SIZE_PATTERN,
    bytes_of,
    moment_of,
    seconds_ago,
    seconds_of,
    value_of,
)
from tests.support.tiers import examples

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# Up to 20 years each: what is longer than a float's 53 bits of milliseconds may be rounded otherwise.
PARTS = st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(sorted(MS))), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("604800", 604_800),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("250ms", 0.25),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("0.1s", 0.1),
    ],
)
def test_a_duration_is_a_number_or_has_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert type(seconds_of(text)) is type(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "5 m",
        "5M",
        "5x",
        "m",
        "-5m",
        "-5",
        "+5",
        "5m ",
        "1_000",
        "٣s",
        "1e999",
        "inf",
        "nan",
        ".5s",
        "5.s",
        "1,5h",
    ],
)
def test_what_is_no_duration_is_named_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=f"^must be .* ms, s, m, h, d or w, .*, not {re.escape(repr(text))}$"):
        seconds_of(text)


@settings(max_examples=examples(300))
@given(PARTS)
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    total = sum(number * MS[unit] for number, unit in parts)
    assert seconds_of(text) == total / 1000
    assert re.search(DURATION_PATTERN, text)
    assert seconds_ago(text) == seconds_ago(f"-{text}") == total / 1000
    assert re.search(AGO_PATTERN, f"-{text}")


@settings(max_examples=examples(300))
@given(st.integers(0, 10**9), st.integers(0, 10**9 - 1), st.sampled_from(sorted(BYTES)))
def test_a_size_is_exact_or_refused(whole: int, billionths: int, unit: str) -> None:
    text = f"{whole}.{billionths:09}{unit}"
    size, rest = divmod((whole * 10**9 + billionths) * BYTES[unit], 10**9)
    assert re.search(SIZE_PATTERN, text)
    if rest:
        with pytest.raises(ValueError, match="must be a whole number of bytes, not"):
            bytes_of(text)
    else:
        assert bytes_of(text) == bytes_of(text.upper()) == bytes_of(text.lower()) == size


@settings(max_examples=examples(300))
@given(st.text(alphabet="0123456789.eE+-kmgtibshdwMGTKB ", max_size=12))
def test_any_text_is_a_finite_number_or_a_refusal_and_schemas_agree(text: str) -> None:
    for parse, pattern in ((seconds_of, DURATION_PATTERN), (bytes_of, SIZE_PATTERN)):
        if re.search(pattern, text):
            with suppress(ValueError):  # half a byte
                assert 0 <= parse(text) < 10**120
        else:
            with pytest.raises(ValueError, match=re.escape(repr(text))):
                parse(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("1GiB", 2**30), ("512KiB", 524_288), ("1.5kB", 1500), ("1e6", 10**6), ("0", 0), ("7B", 7)],
)
def test_a_size_is_a_number_or_has_a_unit(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "10G", "10Gi", "GB", "-1GB", "10 GB", "1GB2MB", "5m", "1e999"])
def test_what_is_no_size_is_named_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=f"^must be .*GB is 10.9.*GiB is 2.30.*, not {re.escape(repr(text))}$"):
        bytes_of(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("5m", NOW - timedelta(minutes=5)),
        ("-5m", NOW - timedelta(minutes=5)),
        ("1d12h", NOW - timedelta(hours=36)),
        ("2026-01-31T11:00:00Z", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("2026-01-31T11:00:00+02:00", datetime(2026, 1, 31, 11, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_time_is_itself_or_how_long_ago_it_was(text: str, moment: datetime) -> None:
    assert moment_of(text, NOW) == moment
    assert moment_of(text, NOW).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "5", "-5", "--5m", "+5m", "m", "yesterday", "2026-01-31", "2026-01-31T11:00:00"])
def test_what_is_no_time_is_named_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=f"^must be .* how long ago it was, such as 5m, not {re.escape(repr(text))}$"):
        moment_of(text, NOW)


@pytest.mark.parametrize("text", ["999999999w", "0001-01-01T00:00:00+10:00"])
def test_a_time_before_the_first_year_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time in the years 1 to 9999, not"):
        moment_of(text, NOW)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_age_s", "7d", 604_800),
        ("max_bytes", "1MiB", 2**20),
        ("target_bytes_per_s", "1MB", 10**6),
        ("target_messages_per_s", "1MB", None),
        ("mode", "5m", None),
    ],
)
def test_the_name_of_a_field_says_what_its_text_is(name: str, text: str, value: float | None) -> None:
    assert value_of(name, text) == value
