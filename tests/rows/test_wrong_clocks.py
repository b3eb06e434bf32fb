"""Lifetimes, and what is too far ahead, go by the cluster's time, and not by the clock of the broker that decodes."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from seaweedq.errors import InvalidMessages
from seaweedq.rows.arrow_bodies import decode_arrow
from seaweedq.rows.bodies import decode_json, decode_ndjson
from seaweedq.rows.envelopes import GIVEN_UP, decode_single
from seaweedq.rows.intake import Intake, TimeUnknown
from seaweedq.segments.layout import TIMESTAMP
from seaweedq.segments.rows import rows_of_singles
from tests.support.rows.body_samples import NOW_US, intake, stream

DAY_US = 86_400 * 1_000_000


def _single(message: dict[str, Any], taking: Intake) -> pa.RecordBatch:
    single = decode_single(json.dumps(message).encode(), taking)
    assert single
    return rows_of_singles([single], taking.layout)


def _several(message: dict[str, Any], taking: Intake) -> pa.RecordBatch:
    return decode_json(json.dumps({"messages": [message, message]}).encode(), taking)


def _lines(message: dict[str, Any], taking: Intake) -> pa.RecordBatch:
    return decode_ndjson(json.dumps(message).encode(), taking)


def _one_by_one(message: dict[str, Any], taking: Intake) -> pa.RecordBatch:
    """Its reference is more than the fast path takes."""
    return decode_json(json.dumps({"key": "k", "reference": {"upload_id": "u"}, **message}).encode(), taking)


def _arrow(message: dict[str, Any], taking: Intake) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": ["1"]}
    if "timestamp" in message:
        columns["_timestamp"] = pa.array([datetime.fromisoformat(message["timestamp"])], TIMESTAMP)
    return decode_arrow(stream(columns), taking)


JSON = {"single": _single, "several": _several, "lines": _lines, "one by one": _one_by_one}
Decode = Callable[[dict[str, Any], Intake], pa.RecordBatch]


def message_of(decode: Decode, **fields: Any) -> dict[str, Any]:
    return fields if decode is _one_by_one else {"value": 1, **fields}


def micros(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // (datetime.resolution)


@pytest.mark.parametrize("off_us", [-DAY_US, DAY_US])
@pytest.mark.parametrize("lifetime", [60, "1m"])
@pytest.mark.parametrize("decode", JSON.values(), ids=JSON)
def test_a_lifetime_counts_from_the_time_of_the_cluster(decode: Decode, lifetime: float | str, off_us: int) -> None:
    taking = replace(intake(), now_us=NOW_US + off_us)
    row = decode(message_of(decode, expires_in_s=lifetime), taking).to_pylist()[0]
    assert micros(row["_expires"]) == NOW_US + 60_000_000
    assert micros(row["_timestamp"]) == NOW_US + off_us


@pytest.mark.parametrize("decode", JSON.values(), ids=JSON)
def test_without_that_time_only_what_has_a_lifetime_has_to_wait(decode: Decode) -> None:
    assert not issubclass(TimeUnknown, GIVEN_UP)
    taking = intake().at(None)
    assert decode(message_of(decode), taking).num_rows
    with pytest.raises(TimeUnknown):
        decode(message_of(decode, expires_in_s=60), taking)


@pytest.mark.parametrize("decode", [_several, _lines, _one_by_one, _arrow])
@pytest.mark.parametrize("off_us", [-DAY_US, DAY_US])
def test_a_wrong_clock_neither_refuses_nor_takes_what_is_an_hour_ahead(decode: Decode, off_us: int) -> None:
    taking = replace(intake(), now_us=NOW_US + off_us)
    for ahead_s, is_taken in ((3590, True), (3610, False)):
        moment = datetime.fromtimestamp(NOW_US / 1e6 + ahead_s, UTC).isoformat()
        message = message_of(decode, timestamp=moment)
        if is_taken:
            assert decode(message, taking).num_rows
        else:
            with pytest.raises(InvalidMessages, match="ahead of the cluster's time"):
                decode(message, taking)


def test_rows_without_a_timestamp_are_not_refused_if_the_broker_is_ahead() -> None:
    taking = replace(intake(), now_us=NOW_US + DAY_US)
    stamp = datetime.fromtimestamp(NOW_US / 1e6, UTC)
    times = pa.array([None, stamp], TIMESTAMP)
    rows = decode_arrow(stream({"value": ["1", "2"], "_timestamp": times}), taking)
    lines = f'{{"value":1}}\n{{"value":2,"timestamp":"{stamp.isoformat()}"}}'
    for found in (rows, decode_ndjson(lines.encode(), taking)):
        first, second = map(micros, found.column("_timestamp").to_pylist())
        assert (first, second) == (NOW_US + DAY_US, NOW_US)
