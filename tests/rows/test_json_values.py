import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.rows.json_values import are_json, blemish, doubtful

DEEP = b"[" * 128 + b"]" * 128
STRING_OF_BRACKETS = b'"' + b"[" * 500 + b'\\"' + b"{" * 500 + b'"'
NUMBERS = [b"1" * 1000, b"-" + b"1" * 999, b"1e308", b"-1e-999", b"0." + b"1" * 998]
GOOD = [b"null", b"0", b'""', b'{"a":[1,{}]}', DEEP, STRING_OF_BRACKETS, b'"1e999"', b'"\\ud83d\\ude00"', *NUMBERS]
BAD = {
    b"": "cut off",
    b"NaN": "not JSON from byte",
    b"[Infinity]": "not JSON from byte",
    b"-Infinity": "not JSON from byte",
    b"01": "not JSON from byte",
    b"1 2": "followed by more text",
    b"{}{}": "followed by more text",
    b"{'a':1}": "not JSON from byte",
    b"[1,]": "not JSON from byte",
    b'"\x01"': "not JSON from byte",
    b'"\n"': "not JSON from byte",
    b'"\\x"': "escape",
    b'"\\ud800 alone"': "",
    b'"\\udc00 alone"': "surrogate",
    b'"\xff"': "UTF-8",
    b'"\xed\xa0\x80"': "UTF-8",
    b"[" * 129 + b"]" * 129: "deeper than 128",
    b'{"a":' * 129 + b"1" + b"}" * 129: "deeper than 128",
    b"[" * 100_000: "deeper than 128",
    b"[" * 100_000 + b"]" * 100_000: "deeper than 128",
    b"1" * 1001: "1000 characters",
    b"0." + b"1" * 999: "1000 characters",
    b"1" * 5000: "out of range",
    b"1e309": "out of range",
    b'{"a":[1,-1E+0400]}': "out of range",
    b"1" * 250 + b"e99": "out of range",
}


@pytest.mark.parametrize("text", GOOD)
def test_good_texts_have_no_blemish(text: bytes) -> None:
    assert blemish(text) is None


@pytest.mark.parametrize(("text", "why"), BAD.items(), ids=[str(text[:20]) for text in BAD])
def test_bad_texts_have_one(text: bytes, why: str) -> None:
    assert why in (blemish(text) or "good")


def skipped(text: bytes) -> bool:
    """Whether msgspec takes a text when it only skips it."""
    try:
        msgspec.json.Decoder(msgspec.Raw).decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


@settings(deadline=None)
@given(st.lists(st.sampled_from([text for text in [*GOOD, *BAD] if skipped(text)]), min_size=1, max_size=30))
def test_the_columns_doubt_every_row_that_has_a_blemish(texts: list[bytes]) -> None:
    column = pa.array(texts, pa.binary()).cast(pa.string(), safe=False) if texts else None
    try:
        rows = doubtful(column)
    except pa.ArrowInvalid:
        assert any(blemish(text) == "not UTF-8" for text in texts)
        return
    assert {at for at, text in enumerate(texts) if blemish(text)} <= set(rows)


def test_ordinary_rows_are_not_doubted() -> None:
    texts = [json.dumps({"n": n, "list": [{"a": [0.5]}] * 60, "text": "e100 " * 100}) for n in range(100)]
    assert doubtful(pa.array(texts)) == []


def test_a_slice_is_doubted_by_its_own_rows() -> None:
    column = pa.array(["1e999", "1", "1e999"])
    assert doubtful(column[1:]) == [1]
    assert doubtful(column[1:2]) == []
    assert are_json(column[1:])


PIECES = st.text(alphabet='[]{},:" 1a\n', max_size=6)


@settings(deadline=None)
@given(st.lists(st.one_of(PIECES, st.sampled_from(["1", "{}", '"a"', "[1,2]", "1,2", "[3", "4]"])), min_size=1))
def test_a_column_is_json_only_if_each_row_is(texts: list[str]) -> None:
    if are_json(pa.array(texts)):
        assert all(json.loads(text) is not Ellipsis for text in texts)
    elif all(text == text.strip() for text in texts):
        assert any(not skipped(text.encode()) for text in texts)
