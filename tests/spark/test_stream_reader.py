"""The reader of a stream without Spark's JVM: what it makes of brokers that lag, fail, and lose rows meanwhile."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.client.core.table import Rows, table_schema
from seaweedq.errors import ClientError
from seaweedq.spark.compat import spark_schema_of
from seaweedq.spark.options import Options
from seaweedq.spark.stream_reader import StreamReader

CREATED = "2026-01-01T00:00:00Z"
NOW = "2026-01-01T12:00:00Z"
FACTS = {"format": "json", "path": "/store/topics/t", "created_at": CREATED}
TOPIC = "/v1/topics/t"


def one(number: int, start: int, flushed: int, end: int, **more: Any) -> dict[str, Any]:
    what = {"state": "open", "predecessors": [], "successors": [], "ended": False, "created_at": CREATED, **more}
    return {"id": number, "start_offset": start, "flushed_offset": flushed, "end_offset": end, **what}


def file(segment: int, first: int, behind: int) -> dict[str, Any]:
    name = f"00000001-{first:016}.parquet"
    known = {"segment": segment, "name": name, "first_offset": first, "next_offset": behind, "bytes": 100}
    return known | {"schema_id": None, "max_timestamp": None}


class Brokers:
    """Answers by path; of several answers each counts once, and the last one stays."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {TOPIC: [FACTS]} | {f"{TOPIC}/{path}": list(given) for path, given in answers.items()}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        given = self.answers.get(request.url.path)
        if given is None:
            return httpx.Response(404, json={"type": "segment-not-found", "title": "no segment", "status": 404})
        answer = given.pop(0) if len(given) > 1 else given[0]
        return httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, json=answer)


@pytest.fixture
def reader() -> Iterator[Callable[..., StreamReader]]:
    made: list[StreamReader] = []

    def make(brokers: Brokers, **options: str) -> StreamReader:
        schema = spark_schema_of(table_schema(brokers.answers[TOPIC][0]))
        made.append(StreamReader(Options.parse({"url": "http://b", "topic": "t", **options}), schema))
        made[-1]._client = Client("http://b", transport=httpx.MockTransport(brokers), timeout_s=1)
        return made[-1]

    yield make
    for each in made:
        each.stop()


def work(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> tuple[list[Any], list[Rows]]:
    """The ranges of files and of tails that a batch reads."""
    found = [partition.share for partition in reader.partitions(start, end)]
    files = [(part.file.segment, part.start, part.end) for each in found for part in each.files]
    return files, [rows for each in found for rows in each.tail]


def maps(*segments: dict[str, Any]) -> dict[str, Any]:
    return {"segments": list(segments), "now": NOW}


def at(offsets: dict[int, int], now: str = NOW) -> dict[str, Any]:
    """Offsets as a checkpoint has them."""
    return {**{str(number): offset for number, offset in offsets.items()}, "now": now}


def test_a_repeated_batch_has_the_rows_that_had_not_expired_at_first(reader: Any) -> None:
    """Its end, which Spark keeps before the batch runs, has the time; a repeat found others expired."""
    later = {**maps(one(0, 0, 10, 20)), "now": "2026-01-02T12:00:00Z"}
    files = [{"files": [file(0, 0, 10)]}]
    made = reader(Brokers(segments=[maps(one(0, 0, 10, 12)), later], files=files))
    start = made.initialOffset()
    assert start == at({0: 12}), "of a stream it is the end"
    end = made.latestOffset(at({0: 3}), made.getDefaultReadLimit())
    assert end == at({0: 20}, later["now"])
    for _ in range(2):
        for begin, stop, as_of in ((at({0: 3}), at({0: 12}), NOW), (at({0: 12}), end, later["now"])):
            found = {partition.as_of for partition in made.partitions(begin, stop)}
            assert found == {datetime.fromisoformat(as_of)}
    keeping = reader(Brokers(segments=[later], files=files), expired="keep")
    assert {partition.as_of for partition in keeping.partitions(at({0: 3}), end)} == {None}


def test_time_alone_makes_no_batch(reader: Any) -> None:
    made = reader(Brokers(segments=[{**maps(one(0, 0, 10, 12)), "now": "2026-01-02T12:00:00Z"}]))
    assert made.latestOffset(at({0: 12}), made.getDefaultReadLimit()) == at({0: 12})


def test_rows_that_retention_takes_between_the_map_and_the_list_are_a_loss(reader: Any) -> None:
    def brokers() -> Brokers:
        seen = [maps(one(0, 0, 10, 12)), maps(one(0, 5, 10, 12))]
        return Brokers(segments=seen, files=[{"files": [file(0, 5, 10)]}])

    with pytest.raises(ClientError, match="segment 0, offsets 0 to 5"):
        work(reader(brokers()), at({0: 0}), at({0: 12}))
    going_on = reader(brokers(), failOnDataLoss="false")
    assert work(going_on, at({0: 0}), at({0: 12})) == ([(0, 5, 10)], [Rows(0, 10, 12)])


def test_rows_that_a_list_has_not_come_from_brokers(reader: Any) -> None:
    brokers = Brokers(segments=[maps(one(0, 0, 10, 12))], files=[{"files": [file(0, 0, 4)]}])
    assert work(reader(brokers), at({0: 0}), at({0: 12})) == ([(0, 0, 4)], [Rows(0, 4, 10), Rows(0, 10, 12)])


def test_a_broker_that_is_away_for_a_moment_ends_no_query(reader: Any) -> None:
    brokers = Brokers(segments=[503, maps(one(0, 0, 10, 12))])
    assert reader(brokers).latestOffset({"0": 3}, reader(brokers).getDefaultReadLimit()) == at({0: 12})


def test_the_least_rows_of_a_batch_may_be_those_of_successors(reader: Any) -> None:
    known = maps(one(0, 0, 9, 9, state="sealed", successors=[1]), one(1, 0, 0, 100, predecessors=[0]))
    made = reader(Brokers(segments=[known]), minOffsetsPerTrigger="50")
    assert made.latestOffset({"0": 9}, made.getDefaultReadLimit()) == at({1: 100})
    assert made.latestOffset({"1": 60}, made.getDefaultReadLimit()) == {"1": 60}
    assert made.reportLatestOffset() == {"1": 100, "backlog": 40}


def test_files_alone_where_the_map_of_a_broker_lags(reader: Any) -> None:
    brokers = Brokers(segments=[maps(one(0, 0, 9, 9))], **{"segments/7": [one(7, 0, 0, 30)]})
    made = reader(brokers, includeTail="false")
    assert made.latestOffset({"0": 5, "7": 20}, made.getDefaultReadLimit()) == at({0: 9, 7: 20})


def test_a_segment_that_nobody_remembers_is_a_loss(reader: Any) -> None:
    brokers = Brokers(segments=[503, maps(one(3, 0, 0, 9))])
    with pytest.raises(ClientError, match="segment 1 from offset 5 on, which brokers no longer know"):
        reader(brokers).latestOffset({"1": 5}, reader(brokers).getDefaultReadLimit())


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_created_anew_amid_a_query_ends_it(reader: Any, fails: str) -> None:
    """With failOnDataLoss=false the query read the rows of the new topic, with the columns of the old one."""
    seen = [maps(one(0, 0, 9, 9)), maps(one(4, 0, 0, 20, created_at="2026-02-01T00:00:00Z"))]
    made = reader(Brokers(segments=seen), failOnDataLoss=fails)
    assert made.latestOffset({"0": 5}, made.getDefaultReadLimit()) == at({0: 9})
    with pytest.raises(ClientError, match="the topic at /store/topics/t was deleted and created again"):
        made.latestOffset({"0": 9}, made.getDefaultReadLimit())


def test_a_query_that_begins_again_over_a_topic_that_was_created_anew(reader: Any) -> None:
    """Ids of segments are never used again, so what the checkpoint names is unknown."""
    brokers = Brokers(segments=[maps(one(4, 0, 0, 20))])
    with pytest.raises(ClientError, match="segment 0 from offset 9 on, which brokers no longer know"):
        reader(brokers).latestOffset({"0": 9}, reader(brokers).getDefaultReadLimit())
    going_on = reader(brokers, failOnDataLoss="false")
    assert going_on.latestOffset({"0": 9}, going_on.getDefaultReadLimit()) == at({4: 20})


@pytest.mark.parametrize(
    ("kind", "added", "why"),
    [
        ("int", [], None),
        ("int", ["x"], None),
        ("long", ["x"], r"wider types for \['n'\]; start the query again"),
        ("renamed", ["x"], None),
        ("dropped", ["x"], r"no longer has the fields \['n'\]; start the query again"),
    ],
)
def test_a_stream_goes_on_without_new_fields_and_not_with_wider_types(
    reader: Any, kind: str, added: list[str], why: str | None
) -> None:
    def facts(version: int, kind: str, *more: str) -> dict[str, Any]:
        n = {"name": "m", "type": "int"} if kind == "renamed" else {"name": "n", "type": kind}
        fields = [n, *({"name": name, "type": "string"} for name in more)]
        if kind == "dropped":
            fields = fields[1:]
        numbered = [{"id": at, **field} for at, field in enumerate(fields, 1 + (kind == "dropped"))]
        return {**FACTS, "format": "typed", "schema_id": version, "schema": {"schema-id": version, "fields": numbered}}

    def of(version: int) -> dict[str, Any]:
        return {**maps(one(0, 0, 0, 3 + version)), "schema_id": version}

    brokers = Brokers(segments=[of(0), of(1)])
    brokers.answers[TOPIC] = [facts(0, "int"), facts(1, kind, *added)]
    made = reader(brokers)
    assert made.initialOffset() == at({0: 3})
    if why:
        with pytest.raises(ClientError, match=why):
            made.latestOffset(at({0: 0}), made.getDefaultReadLimit())
    else:
        assert made.latestOffset(at({0: 0}), made.getDefaultReadLimit()) == at({0: 4})
        (partition,) = made.partitions(at({0: 0}), at({0: 4}))
        assert partition.facts.schema_id == (0 if kind == "renamed" else 1)
        assert "n" in partition.facts.schema.names
