"""Arrow streams in request bodies: what they become, and streams made to hurt: bombs, and damage to any byte."""

import datetime as dt
import re
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.errors import (
    BadRequest,
    InvalidMessages,
    InvalidRequest,
    MessageTooLarge,
    RequestTooLarge,
    UnreadableBody,
)
from seaweedq.rows.arrow_bodies import decode_short_arrow
from seaweedq.rows.bodies import decode_arrow
from seaweedq.segments.layout import HEADERS, TIMESTAMP, mask_of
from tests.support.paths import ROOT
from tests.support.rows.body_samples import LIMIT, NOW_US, TYPES, intake, reasons, stream, values
from tests.support.rows.damaged_streams import VALID, damaged
from tests.support.tiers import examples

TEXTS = ['{"a":1}', "2", '{"a long text, longer than what fits a view": [1, 2]}']
INDEXES = pa.array([0, 1, 2], pa.int8())


def text_columns() -> dict[str, pa.Array]:
    kinds = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view()}
    plain = {name: pa.array(TEXTS, kind) for name, kind in kinds.items()}
    return plain | {
        f"dictionary of {name}": pa.DictionaryArray.from_arrays(INDEXES, column) for name, column in plain.items()
    }


@pytest.mark.parametrize("kind", text_columns())
@pytest.mark.parametrize("format", ["json", "bytes"])
def test_text_of_any_layout_is_taken(kind: str, format: str) -> None:
    rows = decode_arrow(stream({"value": text_columns()[kind], "_key": text_columns()[kind]}), intake(format))
    assert rows.schema.equals(intake(format).layout.rows(mask_of(rows)))
    assert values(rows) == (TEXTS if format == "json" else [text.encode() for text in TEXTS])
    assert rows.column("_key").to_pylist() == TEXTS


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_bytes_of_any_layout_are_taken(kind: pa.DataType) -> None:
    column = pa.array([b"\xff\x00", b"", b"0123456789abcdef"], kind)
    assert values(decode_arrow(stream({"value": column}), intake("bytes"))) == column.to_pylist()
    with pytest.raises(InvalidRequest, match=r"'value' is .*binary"):
        decode_arrow(stream({"value": column}), intake())


def test_the_queues_own_columns() -> None:
    table = {
        "_expires": pa.array([None, 1_795_000_000], pa.timestamp("s", "UTC")),
        "_headers": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.large_string())),
        "_timestamp": pa.array([1_700_000_000_000_000_999, None], pa.timestamp("ns", "America/New_York")),
        "value": ["1", "2"],
        "_key": ["k", None],
    }
    rows = decode_arrow(stream(table), intake())
    assert rows.schema.equals(intake().layout.rows(0b0111))
    assert rows.column("_timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, NOW_US]
    assert rows.column("_expires").cast(pa.int64()).to_pylist() == [None, 1_795_000_000_000_000]
    assert rows.column("_headers").to_pylist() == [[("a", "b")], None]


def test_an_arrow_file_is_told_apart_from_a_stream() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"value": ["1"]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UnreadableBody, match="the body is an Arrow file: send an Arrow stream"):
        decode_arrow(sink.getvalue(), intake())


def test_columns_of_nulls_are_left_out_and_batches_are_joined() -> None:
    batches = [pa.record_batch({"value": [str(n)], "_key": pa.nulls(1, pa.string())}) for n in range(5)]
    rows = decode_arrow(stream(pa.Table.from_batches(batches)), intake())
    assert mask_of(rows) == 0
    assert values(rows) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_streams_are_taken(compression: str) -> None:
    texts = ['"' + "x" * 1000 + '"'] * 50
    assert values(decode_arrow(stream({"value": texts}, compression), intake())) == texts


def test_what_polars_writes_is_taken() -> None:
    import io

    sink = io.BytesIO()
    frame = pl.DataFrame({"value": TEXTS, "_key": pl.Series(["a", "b", "a"], dtype=pl.Categorical)})
    frame.write_ipc_stream(sink)
    rows = decode_arrow(sink.getvalue(), intake())
    assert values(rows) == TEXTS
    assert rows.column("_key").to_pylist() == ["a", "b", "a"]


ONE = ["1"]
MOMENT = pa.timestamp("us", "UTC")
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"value": [1]}, "'value' is int64"),
    ({"value": [{"a": 1}]}, "'value' is struct"),
    ({"value": pa.nulls(1)}, "'value' is null"),
    ({"value": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), ONE)}, "'value' is run_end"),
    ({"value": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array(ONE)])}, "'value' is sparse_union"),
    ({"value": pa.array(ONE).cast(pa.json_())}, "'value' is extension"),
    ({"_key": ONE}, "'value' is missing"),
    ({"value": ONE, "x": ONE}, "'x' is not one of"),
    ({"value": ONE, "_offset": [1]}, "'_offset' is not one of"),
    ({"value": ONE, "_reference": ONE}, "publish references as JSON or NDJSON"),
    ({"value": ONE, "_key": [1]}, "'_key' is int64"),
    ({"value": ONE, "_timestamp": pa.array([1], pa.timestamp("us"))}, "'_timestamp' is timestamp"),
    (
        {"value": ONE, "_timestamp": pa.array([2**62], pa.timestamp("s", "UTC"))},
        "'_timestamp' has a value that cannot be converted to the topic's type for this column",
    ),
    ({"value": ONE, "_headers": ONE}, "'_headers' is string"),
    ({"value": ONE, "_headers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))}, "'_headers' is map"),
    ({"value": ONE, "_headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string_view()))}, "'_headers' is map"),
    ({"value": pa.array([], pa.string())}, "has no messages"),
]


@pytest.mark.parametrize(("table", "why"), MISFITS, ids=[why for _, why in MISFITS])
def test_a_column_that_does_not_fit_is_named(table: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decode_arrow(stream(table), intake())


def test_a_column_that_is_there_twice() -> None:
    table = pa.Table.from_arrays([pa.array(ONE), pa.array(ONE)], names=["value", "value"])
    with pytest.raises(InvalidRequest, match="twice"):
        decode_arrow(stream(table), intake())


BAD_TEXTS = ["1,2", "[3", "4]", "", " ", "NaN", '"\\ud800"', '"\n"', "{}{}", "1\n2", "1e999", "[" * 129 + "]" * 129]


def test_texts_that_are_not_json_are_named() -> None:
    texts: list[str | None] = ["1", *BAD_TEXTS, ' {"a":\n1} ']
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(stream({"value": texts}), intake())
    assert list(reasons(caught.value)) == list(range(1, len(BAD_TEXTS) + 1))
    assert values(decode_arrow(stream({"value": ["1", ' {"a":\n1} ']}), intake())) == ["1", ' {"a":\n1} ']


def test_rows_that_are_not_valid_are_named() -> None:
    table = {
        "value": pa.array(["1", None, "3", "4", "5", "6"]),
        "_timestamp": pa.array([NOW_US, 0, NOW_US + 3600_000_001, -(2**62), 0, 0], TIMESTAMP),
        "_expires": pa.array([0, None, None, None, 2**62, 0], MOMENT),
        "_headers": pa.array([None, None, None, None, None, [("a", None)]], HEADERS),
    }
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(stream(table), intake())
    whys = reasons(caught.value)
    assert list(whys) == [1, 2, 3, 4, 5]
    assert [re.split("[: ]", why)[0] for why in whys.values()] == [
        "value",
        "_timestamp",
        "_timestamp",
        "_expires",
        "_headers",
    ]


def test_rows_that_are_not_valid_for_several_reasons_are_all_named() -> None:
    texts = [None, "{bad", '{"k":{}}', '{"k":"a"}', '{"k":"a"}', '{"k":"b"}', "7", '{"k":[]}']
    table = {
        "value": texts,
        "_key": ["a", "a", None, "b", "a", "b", None, None],
        "_timestamp": pa.array([0, 0, 0, 0, 0, 2**62, 0, 0], TIMESTAMP),
    }
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(stream(table), intake(key_field="k"))
    whys = [
        "value is null",
        "not JSON from byte 1 on",
        "k is not valid: the key field",
        "_key differs",
        "_timestamp is more",
        "k is not valid: the key field",
    ]
    assert list(reasons(caught.value)) == [0, 1, 2, 3, 5, 7]
    for why, found in zip(whys, reasons(caught.value).values(), strict=True):
        assert found.startswith(why)


def test_typed_rows_that_are_not_valid_for_several_reasons_are_all_named() -> None:
    table = {"small": pa.array([None, 2, 3, 4], pa.int32()), "_key": ["1", "2", "9", None]}
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(stream(table), intake("typed", "small"))
    assert list(reasons(caught.value).items()) == [(0, "small is null"), (2, "_key differs from the field 'small'")]


def test_a_null_value_of_a_bytes_topic_is_named() -> None:
    with pytest.raises(InvalidMessages, match="null"):
        decode_arrow(stream({"value": [b"", None]}), intake("bytes"))


def test_keys_of_the_value() -> None:
    texts = ['{"k":"a"}', '{"k":5}', "{}", " 7 "]
    rows = decode_arrow(stream({"value": texts, "_key": [None, "5", "x", "y"]}), intake(key_field="k"))
    assert rows.column("_key").to_pylist() == ["a", "5", "x", "y"]
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(
            stream({"value": [*texts, '{"k":[]}'], "_key": ["b", "5", None, None, None]}), intake(key_field="k")
        )
    assert list(reasons(caught.value)) == [0, 4]


def test_sizes_are_bounded() -> None:
    large = '"' + "x" * (LIMIT - 1) + '"'
    assert decode_arrow(stream({"value": ["1", large[1:-1] + "x"]}), intake("bytes")).num_rows == 2
    with pytest.raises(MessageTooLarge) as caught:
        decode_arrow(stream({"value": ["1", large, large]}), intake())
    assert caught.value.fields == {"limit_bytes": LIMIT, "index": 1}
    headers = pa.array([None, [("a", "x" * (LIMIT // 2))]], HEADERS)
    with pytest.raises(MessageTooLarge, match="key and headers"):
        decode_arrow(stream({"value": ["1", "2"], "_headers": headers, "_key": [None, "x" * (LIMIT // 2)]}), intake())
    with pytest.raises(InvalidRequest, match="1000000"):
        decode_arrow(stream({"value": pa.array(["1"] * 1_000_001)}), intake())
    with pytest.raises(RequestTooLarge, match="more rows into each record batch"):
        decode_arrow(stream(pa.Table.from_batches([pa.record_batch({"value": ONE})] * 2001)), intake())


def test_typed_columns_widen() -> None:
    table = {
        "small": pa.array([1, 2], pa.uint16()),
        "big": pa.array([None, 2], pa.int8()),
        "wide": pa.array([1.5, None], pa.float32()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "clock": pa.array([dt.time(1), None], pa.time32("s")),
        "local": pa.array([1_999, None], pa.timestamp("ns")),
        "token": ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", None],
        "name": pa.array(["a", None], pa.string_view()),
    }
    rows = decode_arrow(stream(table), intake("typed", "small"))
    assert rows.schema.equals(intake("typed").layout.rows(0b0001))
    assert rows.column("_key").to_pylist() == ["1", "2"]
    assert rows.column("clock").to_pylist() == ["01:00:00.000000", None]
    assert rows.column("local").cast(pa.int64()).to_pylist() == [1, None]
    assert rows.column("flag").null_count == 2


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("small", "wide", "single")])
def test_typed_columns_of_another_type_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_arrow(stream({"small": pa.array([1], pa.int32()), name: pa.array([0.5])}), intake("typed"))
    assert caught.value.fields["field"] == name


def test_typed_rows_that_are_not_valid_are_named() -> None:
    table = {
        "small": pa.array([1, None, 3, 4, 5, 6], pa.int32()),
        "token": ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", None, "6ba7b810", None, None, None],
        "day": pa.array([0, 0, 0, 10**8, 0, None], pa.date32()),
        "local": pa.array([0, 0, 0, 0, 2**62, None], pa.timestamp("us")),
    }
    with pytest.raises(InvalidMessages) as caught:
        decode_arrow(stream(table), intake("typed"))
    assert [re.split("[: ]", why)[0] for why in reasons(caught.value).values()] == ["small", "token", "day", "local"]


def test_times_and_uuids_have_one_spelling_whatever_they_come_as() -> None:
    small = pa.array([1, 2], pa.int32())
    clocks: list[Any] = [pa.array([1, None], pa.time32("s")), ["00:00:01.000000", None]]
    token = "6BA7B810-9dad-11d1-80b4-00c04fd430c8"
    for clock in clocks:
        body = stream({"small": small, "clock": clock, "token": [token, None]})
        rows = decode_arrow(body, intake("typed", "token"))
        assert rows.column("clock").to_pylist() == ["00:00:01.000000", None]
        assert rows.column("token").to_pylist() == rows.column("_key").to_pylist() == [token.lower(), None]
    for bad in ("00:00:01", "24:00:00.000000", "00:60:00.000000", "00:00:60.000000", "00:00:01.000000\n", ""):
        with pytest.raises(InvalidMessages, match="clock"):
            decode_arrow(stream({"small": small, "clock": ["00:00:01.000000", bad]}), intake("typed"))


def test_a_required_column_may_not_be_missing() -> None:
    with pytest.raises(InvalidRequest, match="'small' is missing"):
        decode_arrow(stream({"name": ["a"]}), intake("typed"))


def test_a_short_stream_gives_the_same_rows_and_errors() -> None:
    table = {
        "_key": ["k", None, "m"],
        "_timestamp": pa.array([1, None, NOW_US], pa.timestamp("us", "UTC")),
        "_headers": pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
        "value": ["1", "2", "3"],
    }
    for columns in (table, {"value": table["value"]}):
        short = decode_short_arrow(stream(columns), intake(), 3)
        assert short is not None
        assert short.equals(decode_arrow(stream(columns), intake()))
    with pytest.raises(InvalidMessages, match="message 1"):
        decode_short_arrow(stream({"value": ["1", "{", "3"]}), intake(), 3)


@pytest.mark.parametrize("columns", [{"value": ["1"] * 4}, {"value": text_columns()["dictionary of string"]}])
def test_a_stream_that_is_long_or_expands_is_not_short(columns: dict[str, Any]) -> None:
    assert decode_short_arrow(stream(columns), intake(), 3) is None
    assert decode_short_arrow(stream({"value": ["1"]})[:40], intake(), 3) is None


def test_small_messages_may_be_larger_together_than_one_may_be() -> None:
    size = LIMIT // 2 + 1
    rows = decode_arrow(stream({"value": [b"v" * size] * 3, "_key": ["k" * size] * 3}), intake("bytes"))
    assert rows.num_rows == 3
    for columns in ({"value": [b"v", b"v" * (LIMIT + 1)]}, {"value": [b"v"] * 2, "_key": ["k", "k" * (LIMIT + 1)]}):
        with pytest.raises(MessageTooLarge, match="message 1: "):
            decode_arrow(stream(columns), intake("bytes"))


COUNT = 20_000


def expand(body: bytes) -> None:
    """Decode, with the memory that Arrow takes watched."""
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(RequestTooLarge):
        decode_arrow(body, intake())
    assert pa.default_memory_pool().bytes_allocated() - before < 64 << 20


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_bomb_is_refused_before_it_is_opened(compression: str) -> None:
    texts = pa.array(['"' + "0" * 60_000 + '"'] * 2000)
    body = stream({"value": texts}, compression)
    assert len(body) < 1 << 20
    peak = pa.default_memory_pool().max_memory()
    expand(body)
    assert pa.default_memory_pool().max_memory() == peak


def test_many_small_bombs_are_one() -> None:
    batch = pa.record_batch({"value": ['"' + "0" * 60_000 + '"'] * 20})
    expand(stream(pa.Table.from_batches([batch] * 100), "zstd"))


def test_a_bomb_that_lies_about_its_length_is_unreadable() -> None:
    body = stream({"value": ['"' + "0" * 60_000 + '"'] * 2000}, "zstd")
    length = struct.pack("<q", 2000 * 60_002)
    assert body.count(length) == 1
    for lie in (0, 1, 1000, -2, -(2**63)):
        with pytest.raises(UnreadableBody):
            decode_arrow(body.replace(length, struct.pack("<q", lie)), intake())
    for lie in (2**40, 2**63 - 1):
        expand(body.replace(length, struct.pack("<q", lie)))


def test_a_dictionary_bomb_is_refused() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(COUNT, np.int8)), ['"' + "0" * 60_000 + '"'])
    expand(stream({"value": column}))


def test_a_bomb_of_views_is_refused() -> None:
    _, view, data = pa.array(['"' + "0" * 60_000 + '"'], pa.string_view()).buffers()
    views = pa.py_buffer(view.to_pybytes()[:16] * COUNT)
    expand(stream({"value": pa.Array.from_buffers(pa.string_view(), COUNT, [None, views, data])}))


def test_garbage_behind_nulls_is_not_followed() -> None:
    """Arrow's own validation leaves the slots of nulls alone, and its cast reads them: this ended the process."""
    views = struct.pack("<iqi", -(2**24), -1, 2**30) + struct.pack("<i12s", 1, b"1")
    column = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(views)])
    rows = decode_arrow(stream({"value": ["1", "2"], "_key": column}), intake())
    assert rows.column("_key").to_pylist() == [None, "1"]


@pytest.mark.parametrize(
    "body", [b"", b"\x00" * 8, b"\xff" * 64, b"ARROW1\x00\x00" * 8, b'{"value":1}', bytes(1 << 16)]
)
def test_garbage_is_unreadable(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_arrow(body, intake())


@pytest.mark.parametrize("behind", [stream({"value": ["3", "4"]}), b"\x00", bytes(64), b"rubbish"])
def test_what_stands_behind_the_end_is_refused(behind: bytes) -> None:
    """A second stream, whose rows nobody would read, too."""
    one = stream({"value": ["1", "2"]})
    assert decode_short_arrow(one + behind, intake(), 10) is None
    with pytest.raises(UnreadableBody, match=f"ends at byte {len(one)}, but {len(behind)} bytes follow its end"):
        decode_arrow(one + behind, intake())


@pytest.mark.parametrize("at", range(len(VALID)))
def test_every_truncation_is_refused_or_a_prefix(at: int) -> None:
    body, taken = VALID[at]
    whole = decode_arrow(body, taken).num_rows
    for end in range(0, len(body), 7):
        try:
            assert decode_arrow(body[:end], taken).num_rows <= whole
        except BadRequest:
            pass


FLIPS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.one_of(st.integers(0, 255), st.just(255))), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(VALID), FLIPS)
def test_damage_raises_our_errors_only(sample: tuple[bytes, object], flips: list[tuple[int, int]]) -> None:
    body, taken = sample
    try:
        rows = decode_arrow(damaged(body, flips), taken)  # type: ignore[arg-type]
    except BadRequest:
        return
    rows.validate(full=True)
    rows.to_pylist()


MANY = """
import random
from tests.support.rows.damaged_streams import VALID, damaged
from seaweedq.errors import BadRequest
from seaweedq.rows.bodies import decode_arrow
random.seed({seed})
for _ in range(int({count})):
    body, taken = random.choice(VALID)
    octets = [0, 1, 127, 128, 255, random.randrange(256)]
    flips = [(random.randrange(1 << 16), random.choice(octets)) for _ in range(random.randint(1, 6))]
    try:
        decode_arrow(damaged(body, flips), taken).to_pylist()
    except BadRequest:
        pass
print("survived")
"""


@pytest.mark.process
@pytest.mark.long
def test_a_process_survives_thousands_of_damaged_streams() -> None:
    code = MANY.format(seed=1, count=20_000)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "survived\n", done.stderr[-2000:]
