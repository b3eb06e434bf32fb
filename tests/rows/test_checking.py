"""Rows that are checked before an upload: all that a broker would refuse, named with its reasons."""

from typing import Any

import pyarrow as pa
import pytest

from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge
from seaweedq.rows.arrow_bodies import InvalidRow, check_columns, decode_batch
from seaweedq.rows.checking import CHECKED_ROWS, check_rows, topic_intake
from seaweedq.segments.layout import TIMESTAMP
from tests.support.rows.body_samples import LIMIT, NOW_US, TYPES, iceberg, intake

HOUR_US = 3_600_000_000
FACTS = {"format": "json", "schema": None, "key_field": None, "bounds": {"max_message_bytes": LIMIT}}


def moments(*us: int | None) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIMESTAMP)


FAULTY: dict[str, tuple[Any, dict[str, Any], list[InvalidRow]]] = {
    "a value that is no JSON": (
        intake(),
        {"value": ["1", "{", "2", "NaN"]},
        [
            InvalidRow(1, "value", "not JSON: it is cut off"),
            InvalidRow(3, "value", "not JSON from byte 0 on"),
        ],
    ),
    "no value": (intake("bytes"), {"value": pa.array([b"", None])}, [InvalidRow(1, "value", "value is null")]),
    "a time ahead": (
        intake(),
        {"value": ["1", "2"], "_timestamp": moments(NOW_US + 2 * HOUR_US, None)},
        [InvalidRow(0, "_timestamp", "_timestamp is more than one hour ahead of the cluster's time")],
    ),
    "a time of expiry": (
        intake(),
        {"value": ["1", "2"], "_expires": moments(NOW_US, 2**62)},
        [InvalidRow(1, "_expires", "_expires is out of range")],
    ),
    "headers": (
        intake(),
        {"value": ["1", "2"], "_headers": pa.array([[("a", None)], None], pa.map_(pa.string(), pa.string()))},
        [InvalidRow(0, "_headers", "_headers: contains a null")],
    ),
    "another key": (
        intake(key_field="k"),
        {"value": ['{"k":"a"}', '{"k":[]}', '{"k":"b"}'], "_key": ["a", None, "a"]},
        [
            InvalidRow(
                1, "value", "k is not valid: the key field contains an object or an array, which cannot be a key"
            ),
            InvalidRow(2, "_key", "_key differs from the field 'k'"),
        ],
    ),
    "fields": (
        intake("typed"),
        {"small": pa.array([1, None, 1], pa.int32()), "token": [None, None, "x"], "clock": ["1", None, None]},
        [
            InvalidRow(0, "clock", "clock is not a time of the form HH:MM:SS.ffffff"),
            InvalidRow(1, "small", "small is null"),
            InvalidRow(2, "token", "token is not a UUID"),
        ],
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_rows_that_a_broker_refuses_are_named_with_column_and_reason(what: str) -> None:
    rules, columns, faults = FAULTY[what]
    batch = pa.record_batch(columns)
    assert check_rows(batch, rules) == faults
    with pytest.raises(InvalidMessages) as refused:
        decode_batch(batch, rules)
    assert refused.value.fields["errors"] == [{"index": row, "reason": reason} for row, _, reason in faults]
    bad = {fault.row for fault in faults}
    good = batch.filter(pa.array([row not in bad for row in range(batch.num_rows)]))
    assert check_rows(good, rules) == []


def test_all_rows_that_are_too_large_are_named_beside_other_faults() -> None:
    long = f'"{"x" * LIMIT}"'
    batch = pa.record_batch({"value": ["1", long, "{", long, "2"], "_key": ["a", "b", "c", "d", "k" * (LIMIT + 1)]})
    over, found = f"over max_message_bytes={LIMIT}", check_rows(batch, intake())
    assert [(row, column) for row, column, why in found if why == over] == [(1, "value"), (3, "value"), (4, "_key")]
    assert [fault.row for fault in found] == [1, 2, 3, 4]
    with pytest.raises(MessageTooLarge) as refused:
        decode_batch(batch, intake())
    assert refused.value.fields["index"] == 1
    typed = pa.record_batch({"small": pa.array([1], pa.int32()), "name": ["x" * LIMIT], "blob": [b"y"]})
    assert check_rows(typed, intake("typed")) == [InvalidRow(0, None, over)]


def test_every_invalid_row_of_a_large_batch_is_found() -> None:
    count = 2 * CHECKED_ROWS + 5
    batch = pa.record_batch({"value": ["{" if row % 3 else "1" for row in range(count)]})
    assert [fault.row for fault in check_rows(batch, intake())] == [row for row in range(count) if row % 3]


def test_a_batch_that_is_too_large_at_once_is_checked_in_halves() -> None:
    batch = pa.record_batch({"value": [f'"{"x" * 1000}"', f'"{"y" * 3100}"', "{", "1", "2"]})
    found = check_rows(batch, intake(limit=2000, request=3000))
    assert found == [InvalidRow(1, None, "over 3000 bytes"), InvalidRow(2, "value", "not JSON: it is cut off")]


def test_an_empty_batch_has_no_faults() -> None:
    assert check_rows(pa.record_batch({"value": pa.array([], pa.string())}), intake()) == []


def test_the_rules_are_those_of_the_topic_as_brokers_show_it() -> None:
    rules = topic_intake(FACTS | {"key_field": "id"}, NOW_US)
    assert (rules.max_message_bytes, rules.key_field, rules.judged_from_us) == (LIMIT, "id", NOW_US)
    typed = topic_intake(FACTS | {"format": "typed", "schema": iceberg(TYPES, required=("small",))}, NOW_US)
    assert typed.layout == intake("typed").layout
    check_columns(pa.schema({"small": pa.int16(), "_key": pa.string()}), typed)
    with pytest.raises(InvalidRequest, match="'offset' is not one of"):
        check_columns(pa.schema({"small": pa.int16(), "offset": pa.int64()}), typed)
