"""Messages in JSON answers, joined by columns, as a JSON encoder would write each; and ids read by columns."""

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.rows.bodies import decode_ndjson
from seaweedq.rows.message_json import dense, encode_messages, json_array, message_texts, read_ids
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import Reference, Single, rows_of_singles
from tests.support.rows.body_samples import FIELDS, NOW_US, intake
from tests.support.tiers import examples

JSON, BYTES, TYPED = (Layout.from_format(format, FIELDS) for format in (Format.JSON, Format.BYTES, Format.TYPED))


def rows(*singles: tuple[str | None, bytes, dict[str, str] | None], layout: Layout = JSON) -> pa.RecordBatch:
    return rows_of_singles([Single(key, value, headers, NOW_US, None) for key, value, headers in singles], layout)


def test_a_message_read() -> None:
    piece = rows(('a"\n', b'{"a":  1.50}', {"h": 'v"'}), (None, b"null", None))
    text = encode_messages([(7, piece)], 3, JSON)[0]
    assert text == (
        b'[{"id":"3-7","key":"a\\"\\n","value":{"a":  1.50},"headers":{"h":"v\\""},'
        b'"timestamp":"2026-09-21T14:13:20.000000Z","segment":3,"offset":7},'
        b'{"id":"3-8","key":null,"value":null,"headers":{},'
        b'"timestamp":"2026-09-21T14:13:20.000000Z","segment":3,"offset":8}]'
    )


def test_pieces_follow_each_other_and_none_are_an_empty_array() -> None:
    pieces = [(0, rows((None, b"1", None), (None, b"2", None))), (10, rows(("k", b"3", None)))]
    found = json.loads(encode_messages(pieces, 0, JSON)[0])
    assert [(m["id"], m["key"], m["value"]) for m in found] == [("0-0", None, 1), ("0-1", None, 2), ("0-10", "k", 3)]
    assert encode_messages([], 0, JSON)[0] == b"[]"
    assert json_array([]) == b"[]"


@settings(deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=50), max_size=4), max_bytes=st.integers(0, 30_000)
)
def test_as_many_messages_as_fit_but_at_least_one(sizes: list[list[int]], max_bytes: int) -> None:
    texts = [[b'"%b"' % (b"x" * size) for size in piece] for piece in sizes]
    pieces = [(100 * at, rows(*[(None, text, None) for text in piece])) for at, piece in enumerate(texts)]
    whole = json.loads(encode_messages(pieces, 0, JSON)[0])
    text, left_out = encode_messages(pieces, 0, JSON, max_bytes=max_bytes)
    found = json.loads(text)
    assert found == whole[: len(found)]
    assert len(text) <= max_bytes or len(found) <= 1
    assert left_out == (whole[len(found)]["offset"] if len(found) < len(whole) else None)
    if left_out is not None:
        assert len(found) >= 1
        alone = rows((None, texts[left_out // 100][left_out % 100], None))
        more = message_texts(pa.array([left_out]), alone, 0, JSON, None)
        assert len(text) + 1 + len(more[0].as_py()) > max_bytes


@pytest.mark.parametrize("max_bytes", [1 << 20, 1 << 24])
def test_texts_that_are_made_in_slices(max_bytes: int) -> None:
    layout = Layout.from_format(Format.TYPED, pa.schema([("x", pa.int32())]))
    columns = [pa.array([0] * 9000, pa.timestamp("us", "UTC")), pa.array(range(9000), pa.int32())]
    piece = pa.RecordBatch.from_arrays(columns, schema=layout.rows(0))
    text, left_out = encode_messages([(7, piece)], 0, layout, max_bytes=max_bytes)
    found = [message["value"]["x"] for message in json.loads(text)]
    assert found == list(range(9000 if left_out is None else left_out - 7))
    assert (left_out is None) == (max_bytes > 1 << 20)
    assert len(text) <= max_bytes
    assert left_out is None or len(text) > max_bytes - 200


def test_neighbours_of_one_schema_are_put_together() -> None:
    plain = pa.record_batch({"value": ["a", "b"]})
    keyed = pa.record_batch({"_key": ["k"], "value": ["c"]})
    pieces = [(3, plain), (5, plain), (7, keyed), (8, keyed), (10, keyed), (11, plain)]
    together = [(first, rows.num_rows, rows.schema.names) for first, rows in dense(pieces)]
    names = [["value"], ["_key", "value"], ["_key", "value"], ["value"]]
    assert together == [
        (first, count, n) for (first, count), n in zip([(3, 4), (7, 2), (10, 1), (11, 2)], names, strict=True)
    ]
    assert next(dense(pieces))[1].column("value").to_pylist() == ["a", "b", "a", "b"]
    assert list(dense([])) == []


@pytest.mark.parametrize("attempts", [None, [1, 1, 1], [1, 4, 65_535]])
def test_offsets_and_attempts_are_those_of_each_row(attempts: list[int] | None) -> None:
    counts = None if attempts is None else pa.array(attempts, pa.uint16())
    texts = message_texts(pa.array([5, 6, 90]), rows(*[(None, b"1", None)] * 3), 2, JSON, counts).to_pylist()
    found = [json.loads(text) for text in texts]
    assert [message["id"] for message in found] == ["2-5", "2-6", "2-90"]
    assert [message.get("attempt") for message in found] == (attempts or [None] * 3)


def test_a_slice_of_rows_reads_as_its_own() -> None:
    piece = rows(("a", b"1", {"x": "1"}), ("b", b"2", None), ('"', b"3", {"y": "2"}))
    found = json.loads(encode_messages([(1, piece.slice(1, 1)), (2, piece.slice(2))], 0, JSON)[0])
    assert [(m["key"], m["value"], m["headers"]) for m in found] == [("b", 2, {}), ('"', 3, {"y": "2"})]


def test_bytes_are_base64() -> None:
    piece = rows((None, b"\xff\x00a", None), (None, b"", None), layout=BYTES)
    found = json.loads(encode_messages([(0, piece)], 0, BYTES)[0])
    assert [m["value_base64"] for m in found] == ["/wBh", ""]
    assert all("value" not in m for m in found)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=8)),
            st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)),
            st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(0, 2**62),
)
def test_what_was_sent_is_read(messages: list[tuple[str | None, Any, dict[str, str]]], first: int) -> None:
    piece = rows(*[(key, json.dumps(value).encode(), headers) for key, value, headers in messages])
    found = json.loads(encode_messages([(first, piece)], 1, JSON)[0])
    assert [(m["key"], m["value"], m["headers"], m["offset"]) for m in found] == [
        (*message, first + at) for at, message in enumerate(messages)
    ]


TYPED_VALUE = {
    "flag": False,
    "small": -5,
    "big": -(2**63),
    "single": 0.1,
    "wide": 1e300,
    "price": "-0.05",
    "day": "0099-12-31",
    "clock": "01:02:03.000004",
    "local": "0001-01-01T00:00:00.000001",
    "moment": "2024-02-29T23:59:59.500000Z",
    "name": 'quoted "é" \\ \u0000',
    "token": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "code": "QUJD",
    "blob": "/w==",
}


def test_typed_values_read_as_they_were_sent() -> None:
    lines = [TYPED_VALUE, {"small": 1}, {"small": 2, "name": "plain"}]
    piece = decode_ndjson(b"\n".join(json.dumps({"value": value}).encode() for value in lines), intake("typed"))
    found = json.loads(encode_messages([(0, piece)], 0, TYPED)[0])
    nothing = dict.fromkeys(TYPED_VALUE)
    assert [m["value"] for m in found] == [TYPED_VALUE, nothing | {"small": 1}, nothing | {"small": 2, "name": "plain"}]
    again = decode_ndjson(b"\n".join(json.dumps({"value": m["value"]}).encode() for m in found), intake("typed"))
    assert again.equals(piece)


def test_floats_that_json_lacks_are_null_and_small_decimals_are_exact() -> None:
    fields = pa.schema([("x", pa.float64()), ("y", pa.float32()), ("d", pa.decimal128(38, 20))])
    layout = Layout.from_format(Format.TYPED, fields)
    one = Decimal(1).scaleb(-20)
    columns = [
        pa.array([NOW_US] * 3, pa.timestamp("us", "UTC")),
        pa.array([float("nan"), float("-inf"), -0.0]),
        pa.array([float("inf"), 1e-45, None], pa.float32()),
        pa.array([one, -one, Decimal(10**17)], pa.decimal128(38, 20)),
    ]
    piece = pa.RecordBatch.from_arrays(columns, schema=layout.rows(0))
    found = [m["value"] for m in json.loads(encode_messages([(0, piece)], 0, layout)[0])]
    assert [(value["x"], value["y"]) for value in found] == [(None, None), (None, 1e-45), (-0.0, None)]
    assert [Decimal(value["d"]) for value in found] == [one, -one, Decimal(10**17)]


def test_names_of_fields_are_escaped() -> None:
    layout = Layout.from_format(Format.TYPED, pa.schema([('a"b', pa.int32())]))
    columns = [pa.array([NOW_US], pa.timestamp("us", "UTC")), pa.array([1], pa.int32())]
    piece = pa.RecordBatch.from_arrays(columns, schema=layout.rows(0))
    assert json.loads(encode_messages([(0, piece)], 0, layout)[0])[0]["value"] == {'a"b': 1}


TEXT = st.none() | st.text(max_size=8) | st.sampled_from(['"', "\\", '"},{"x":"', "\n", "\x00", "é☃", "</script>"])
REFERENCES = st.none() | st.builds(Reference, TEXT, st.none() | st.integers(0, 2**62), TEXT, TEXT)


def rows_of(format: Format, references: list[Reference | None]) -> tuple[Layout, Any]:
    layout = Layout.from_format(format)
    singles = [Single(f"k{n}", None if r else b'"v"', None, 0, None, r) for n, r in enumerate(references)]
    return layout, rows_of_singles(singles, layout)


@pytest.mark.parametrize("format", [Format.JSON, Format.BYTES])
@settings(deadline=None, max_examples=examples(150))
@given(references=st.lists(REFERENCES, min_size=1, max_size=6), cut=st.integers(0, 5), linked=st.booleans())
def test_as_an_encoder_would(format: Format, references: list[Reference | None], cut: int, linked: bool) -> None:
    layout, rows = rows_of(format, references)
    cut = min(cut, len(references) - 1)
    links = {r.uri: f'http://x/?{n}&"\\' for n, r in enumerate(references) if r and r.uri is not None} if linked else {}
    numbers, ones = pa.array(range(cut, len(references))), pa.array([1] * (len(references) - cut))
    found = json.loads(json_array([message_texts(numbers, rows.slice(cut), 3, layout, ones, links)]))
    assert [each["offset"] for each in found] == list(range(cut, len(references)))
    for message, reference in zip(found, references[cut:], strict=True):
        assert list(message)[-1] == ("reference" if reference else "attempt")
        value = message["value" if format is Format.JSON else "value_base64"]
        assert (value is None) == (reference is not None)
        if reference:
            expected: dict[str, Any] = {
                "uri": reference.uri,
                "size": reference.size,
                "content_type": reference.content_type,
                "sha256": reference.sha256,
            }
            if url := links.get(reference.uri):
                expected["url"] = url
            assert message["reference"] == expected


def test_many_messages_in_pieces() -> None:
    """More than the few that are joined one by one, in pieces with and without references."""
    layout, referring = rows_of(Format.JSON, [Reference(f"s3://b/{n}", n, "a/b", "ab") for n in range(100)])
    _, plain = rows_of(Format.JSON, [None] * 100)
    found = json.loads(
        encode_messages([(0, referring), (100, plain), (200, referring)], 0, layout, {"s3://b/7": "u"})[0]
    )
    assert [each["offset"] for each in found] == list(range(300))
    assert [each.get("reference", {}).get("size") for each in found] == [*range(100), *[None] * 100, *range(100)]
    assert [each["offset"] for each in found if "url" in each.get("reference", {})] == [7, 207]


GOOD = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
MANY = [f"{segment}-{offset}" for segment in (3, 0) for offset in (12, 5, 100_000, 0)]
numbers = st.one_of(st.integers(0, 20), st.integers(0, 10**18 - 1))
ids = st.builds("{}-{}".format, numbers, numbers)
strange = st.one_of(st.text("0123456789-,٣é \n", max_size=12), ids.map(lambda one: f"0{one}"), ids.map("{},1-1".format))


def expected(texts: list[str]) -> tuple[dict[int, list[int]], list[str]]:
    offsets: dict[int, list[int]] = {}
    for text in texts:
        if parts := GOOD.fullmatch(text):
            offsets.setdefault(int(parts[1]), []).append(int(parts[2]))
    return {n: sorted(some) for n, some in offsets.items()}, [text for text in texts if not GOOD.fullmatch(text)]


def found(texts: list[str]) -> tuple[dict[int, list[int]], list[str]]:
    offsets, others = read_ids(texts)
    return {number: some.tolist() for number, some in offsets.items()}, others


@given(st.lists(ids, max_size=40))
def test_ids(texts: list[str]) -> None:
    assert found(texts) == expected(texts)


@given(st.lists(st.one_of(ids, strange), min_size=9, max_size=40))
def test_ids_among_others(texts: list[str]) -> None:
    assert found(texts) == expected(texts)


@pytest.mark.parametrize(
    "text",
    ["", "-", "1-", "-1", "1", "1-2-3", "1,2", "1-2,3-4", "01-2", "1-02", "1-2\n", "1 -2", "٣-1", "1-" + "9" * 19],
)
@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_text_that_is_no_id_is_told_wherever_it_stands(text: str, at: int) -> None:
    texts = [*MANY[:at], text, *MANY[at:]]
    assert found(texts) == expected(texts)
    assert found(texts)[1] == [text]


def test_the_largest_numbers() -> None:
    largest = 10**18 - 1
    assert found([f"{largest}-{largest}"] * 10) == ({largest: [largest] * 10}, [])
