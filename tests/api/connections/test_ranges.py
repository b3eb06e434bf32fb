"""Ranges of bytes, against the grammar and the rules of RFC 9110, 14."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.api.connections.answers import parse_range
from seaweedq.errors import OffsetOutOfRange

SIZES = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("text", "size", "span"),
    [
        (None, 10, None),
        ("", 10, None),
        ("bytes=0-0", 10, (0, 1)),
        ("bytes=0-", 10, (0, 10)),
        ("bytes=3-5", 10, (3, 6)),
        ("BYTES=3-5", 10, (3, 6)),
        ("bytes=9-99999999", 10, (9, 10)),
        ("bytes=-3", 10, (7, 10)),
        ("bytes=-30", 10, (0, 10)),
        ("bytes=5-3", 10, None),
        ("bytes=-", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("items=0-1", 10, None),
        ("bytes=a-b", 10, None),
        ("bytes=+1-2", 10, None),
        ("bytes=\u0663-4", 10, None),
        ("bytes", 10, None),
    ],
)
def test_what_is_understood(text, size, span):
    assert parse_range(text, size) == span


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("bytes=10-", 10),
        ("bytes=10-20", 10),
        ("bytes=-0", 10),
        ("bytes=0-", 0),
        ("bytes=-1", 0),
        ("bytes=" + "9" * 5000 + "-", 10),
    ],
)
def test_what_has_no_byte(text, size):
    with pytest.raises(OffsetOutOfRange) as caught:
        parse_range(text, size)
    assert caught.value.fields == {"size": size}
    assert len(caught.value.detail) < 200


@given(st.text(max_size=30) | st.from_regex(r"bytes=[0-9]{0,4}-[0-9]{0,4}", fullmatch=True), SIZES)
def test_a_range_is_never_empty_nor_beyond(text, size):
    try:
        span = parse_range(text, size)
    except OffsetOutOfRange:
        return
    assert span is None or 0 <= span[0] < span[1] <= size


@given(st.integers(0, 999), st.integers(0, 999), st.integers(1, 1000))
def test_it_is_what_was_asked_for(first, last, size):
    content = bytes(size)
    if first <= last and first < size:
        start, end = parse_range(f"bytes={first}-{last}", size) or (0, 0)
        assert len(content[start:end]) == len(content[first : last + 1])
        assert start == first
