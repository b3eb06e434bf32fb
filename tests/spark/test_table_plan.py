"""Rows of a topic that come from files, from brokers through the driver, and by executors. No Spark."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq import Client
from seaweedq.client.core.table import Rows, TablePlan, plan
from seaweedq.errors import TopicNotFound
from seaweedq.spark import topic_table
from seaweedq.spark.topic_table import condition as condition_of
from seaweedq.spark.topic_table import file_condition


def segment(number: int, start: int, flushed: int, end: int) -> dict[str, Any]:
    return {"id": number, "start_offset": start, "flushed_offset": flushed, "end_offset": end}


@st.composite
def maps(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for number in sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=6))):
        start, flushed, end = sorted(draw(st.lists(st.integers(0, 9), min_size=3, max_size=3)))
        found.append(segment(number, start, flushed, end))
    return found


@given(known=maps(), data=st.data())
def test_each_row_comes_once_from_where_it_is(known: list[dict[str, Any]], data: st.DataObject) -> None:
    """Files may have rows beyond the pins, of segments that nobody listed, and rows that retention has taken."""
    numbers = [each["id"] for each in known]

    def some() -> dict[int, int]:
        chosen = data.draw(st.sets(st.sampled_from(numbers)))
        return {each["id"]: data.draw(st.integers(0, each["end_offset"])) for each in known if each["id"] in chosen}

    starting, ending = some(), some()
    only = data.draw(st.none() | st.sets(st.sampled_from(numbers)))
    planned = plan(known, starting, ending, only)
    files = duckdb.sql("SELECT s::INT AS segment, o AS _offset FROM range(14) a(s), range(12) b(o)")
    condition = condition_of(planned.files).replace("L,", ",").replace("L)", ")")  # as DuckDB writes numbers
    condition = condition.replace("[segment - ", "[segment + 1 - ").replace("array(", "list_value(")
    read = [(s, o) for s, o in files.filter(condition).fetchall()] if planned.files else []
    read += [(rows.segment, offset) for rows in planned.tail for offset in range(rows.start, rows.end)]
    wanted = [
        (each["id"], offset)
        for each in known
        if only is None or each["id"] in only
        for offset in range(
            max(each["start_offset"], starting.get(each["id"], 0)), ending.get(each["id"], each["end_offset"])
        )
    ]
    assert sorted(read) == wanted


def test_without_a_tail_there_are_files_alone() -> None:
    assert plan([segment(0, 2, 5, 9)], tail=False) == TablePlan((Rows(0, 2, 5),), ())


def test_no_rows_at_all() -> None:
    assert condition_of(plan([segment(0, 0, 0, 0)]).files) == "false"


def test_a_condition_has_two_arrays_however_many_segments_there_are() -> None:
    condition = condition_of(plan([segment(number, number % 2, 5, 9) for number in range(3, 300)]).files)
    assert condition.count("array(") == 2
    assert condition.startswith("segment BETWEEN 3 AND 299 AND _offset < array(5L, ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"starting": {7: 0}},
            "starting names segment 7, which the topic does not have; the topic's segments are 0, 3",
        ),
        ({"ending": {3: 10}}, r"the offset of segment 3 in ending must be from 0 to 9 \(the segment's end\), not 10"),
        ({"starting": {3: -1}}, "the offset of segment 3 in starting must be from 0 .*, not -1"),
        ({"starting": {3: "1"}}, "the offset of segment 3 in starting must be from 0 .*, not '1'"),
        ({"only": [1]}, "segments names segment 1"),
    ],
)
def test_what_is_not_there_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        plan([segment(0, 0, 5, 9), segment(3, 0, 5, 9)], **options)


def test_ranges_are_cut() -> None:
    assert Rows(1, 5, 10).cut(2) == [Rows(1, 5, 7), Rows(1, 7, 9), Rows(1, 9, 10)]


def test_files_are_told_apart_only_where_some_do_not_count() -> None:
    files = [Rows(1, 0, 5), Rows(3, 2, 5)]
    assert file_condition(files, {}) == ""
    assert file_condition(files, {0: "00000009-0000000000000000.parquet"}) == "", "nothing of it is read"
    name = "00000001-0000000000000002.parquet"
    assert file_condition([Rows(3, 2, 5)], {3: name}) == f"_metadata.file_name >= '{name}'"
    assert f"get(array('', '', '{name}')" in file_condition(files, {3: name})


class Tails:
    """Brokers whose segments have ten rows each, three of them a request."""

    def read_segment(self, topic: str, segment: int, start: int, end: int, expired: str) -> Iterator[pa.RecordBatch]:
        assert expired == "keep", "the frame judges them by its own time"
        for first in range(start, end, 3):
            some = [*range(first, min(first + 3, end))]
            yield pa.RecordBatch.from_pydict({"_offset": some, "segment": [segment] * len(some)})


@pytest.mark.parametrize("most", [1, 60, 1000])
def test_each_row_comes_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(topic_table, "DRIVER_BYTES", most)
    tails: Any = Tails()
    fetch = topic_table.Fetch("http://b", "t", {}, pa.schema([("_offset", pa.int64()), ("segment", pa.int32())]))
    held, rest = topic_table.fetch_tail(cast(Client, tails), fetch, [Rows(0, 0, 10), Rows(1, 4, 10)])
    held += [batch for rows in rest for batch in tails.read_segment("t", rows.segment, rows.start, rows.end, "keep")]
    found = [(row["segment"], row["_offset"]) for batch in held for row in batch.to_pylist()]
    assert sorted(found) == [*((0, n) for n in range(10)), *((1, n) for n in range(4, 10))]


@pytest.mark.parametrize("tail", ["read", "flush", "skip"])
def test_brokers_that_are_away_for_a_moment_are_waited_for(monkeypatch: pytest.MonkeyPatch, tail: Any) -> None:
    """The source waited, and read_topic failed at once."""
    asked: list[str] = []

    def brokers(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(404, json={"type": "/problems/topic-not-found", "title": "no topic", "status": 404})

    def client(url: str, headers: Any) -> Client:
        return Client(url, headers=headers, transport=httpx.MockTransport(brokers))

    monkeypatch.setattr(topic_table, "Client", client)
    with pytest.raises(TopicNotFound):
        topic_table.read_topic(cast(Any, SimpleNamespace(version="4.3.0")), "t", "http://b", tail=tail)
    assert len(asked) == 3
