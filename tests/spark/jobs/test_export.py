"""export: each message once over all generations, whatever was split, flushed or killed between; subfolders, order,
losses, and folders that are of something else."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.errors import ClientError
from seaweedq.spark import read_generation
from seaweedq.spark.jobs.compact import Rules, compact
from seaweedq.spark.jobs.export import export
from seaweedq.spark.jobs.generation_job import Snapshot, Target
from tests.support.processes.bounded_client import wait_for
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def positions(frame: Any) -> list[tuple[int, int, str]]:
    return sorted((row.segment, row["_offset"], row.value) for row in frame.collect())


def of_topic(client: Client, topic: str) -> list[tuple[int, int, str]]:
    rows = client.read_table(topic, live=True).to_pylist()
    return sorted((row["segment"], row["_offset"], row["value"]) for row in rows)


def publish(client: Client, topic: str, start: int, end: int) -> None:
    client.publish(topic, [{"key": f"k{n % 11}", "value": n} for n in range(start, end)])


def test_each_run_adds_what_is_new(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    to = Target(str(tmp_path / "out"))
    with Client(broker.url) as client:
        client.create_topic("e", initial_segments=2)
        publish(client, "e", 0, 40)
        client.flush("e")
        publish(client, "e", 40, 60)
        first = export(spark, "e", broker.url, to)
        assert (first.generation, first.read, first.rows) == (1, 60, 60)
        assert positions(read_generation(spark, to.to)) == of_topic(client, "e")
        again = export(spark, "e", broker.url, to)
        assert (again.generation, again.rows, again.removed) == (None, 0, ())
        publish(client, "e", 60, 70)
        assert httpx.post(f"{broker.url}/v1/topics/e/segments/0/split", timeout=30, trust_env=False).status_code == 200
        publish(client, "e", 70, 90)
        second = export(spark, "e", broker.url, to)
        assert (second.generation, second.rows) == (2, 30)
        assert positions(read_generation(spark, to.to)) == of_topic(client, "e")
        assert read_generation(spark, to.to, 1).count() == 60


KEYS = ["a", "b/c=d", "e f%20", None, "001", "2026-01-31"]


@pytest.mark.long
def test_subfolders_and_order(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    to = Target(str(tmp_path / "out"), ("_key", "segment"), ("value", "_offset"))
    with Client(broker.url) as client:
        client.create_topic("p", initial_segments=2)
        for part in range(2):
            client.publish("p", [{"key": KEYS[n % 6], "value": n * 7 % 100 + 1000 * part} for n in range(90)])
            assert export(spark, "p", broker.url, to).rows == 90
        expected = client.read_table("p", live=True).to_pylist()
    frame = read_generation(spark, to.to)
    assert frame.columns == [*expected[0]]
    kept = sorted((str(row["_key"]), row.segment, row["_offset"], row.value) for row in frame.collect())
    assert kept == sorted((str(r["_key"]), r["segment"], r["_offset"], r["value"]) for r in expected)
    assert frame.where("_key = '001'").count() == 30
    assert httpx.post(f"{broker.url}/v1/topics/p/segments/0/split", timeout=30, trust_env=False).status_code == 200
    moved = export(spark, "p", broker.url, to)
    assert (moved.generation, moved.rows) == (3, 0), "the offsets go on, so that no segment of before is asked for"
    assert read_generation(spark, to.to).count() == len(kept)
    assert export(spark, "p", broker.url, to).generation is None
    files = sorted(Path(to.to).rglob("*.parquet"))
    assert {str(path.parent.parent.name) for path in files} >= {"_key=a", "_key=b%2Fc%3Dd", "_key=001"}
    for path in files:
        table = pq.read_table(path, partitioning=None)
        assert "_key" not in table.column_names
        assert table["value"].to_pylist() == sorted(table["value"].to_pylist())
        assert str(table.schema.field("_timestamp").type).startswith("timestamp[us")
    with pytest.raises(
        ClientError, match=r"with --partition-by _key,segment; .* run this job with --partition-by _key"
    ):
        export(spark, "p", broker.url, Target(to.to))


@pytest.mark.long
def test_moments_as_subfolders_in_another_zone(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") != "UTC"
    moment = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
    with Client(broker.url) as client:
        client.create_topic("m")
        client.publish("m", {"value": 1, "timestamp": moment})
    to = Target(str(tmp_path), ("_timestamp",))
    export(spark, "m", broker.url, to)
    kept = read_generation(spark, to.to).selectExpr("unix_micros(_timestamp) AS us").first()
    assert kept.us == int(moment.timestamp()) * 1_000_000 + 5


@pytest.mark.long
def test_columns_and_folders_that_cannot_be(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    with Client(broker.url) as client:
        client.create_topic("f")
        client.create_topic("f2")
        publish(client, "f", 0, 3)
        publish(client, "f2", 0, 3)
        to = Target(str(tmp_path / "out"))
        for wrong, why in [
            (
                Target(to.to, ("nope",)),
                "--partition-by names columns that the topic does not have: nope; the topic's columns are",
            ),
            (Target(to.to, (), ("nope",)), "--sort names columns that the topic does not have: nope"),
            (Target(to.to, ("_key", "_key")), "--partition-by names a column twice"),
            (Target(str(broker.store / "topics" / "out")), "is inside the brokers' store"),
            (Target(str(broker.store)), "is inside the brokers' store"),
            (Target("hdfs://host/out"), "the folder for generations must be"),
        ]:
            with pytest.raises(ValueError, match=why):
                export(spark, "f", broker.url, wrong)
        assert not Path(to.to).exists()
        (tmp_path / "file").write_text("")
        with pytest.raises(ClientError, match="cannot write to"):
            export(spark, "f", broker.url, Target(str(tmp_path / "file" / "out")))
        export(spark, "f", broker.url, to)
        with pytest.raises(ClientError, match="export f`, not of `seaweedq spark export f2`"):
            export(spark, "f2", broker.url, to)
        with pytest.raises(ClientError, match="export f`, not of `seaweedq spark compact f`"):
            compact(spark, "f", broker.url, to, Rules())
        client.delete_topic("f")
        wait_for(lambda: "f" not in [each["name"] for each in client.topics()])
        client.create_topic("f")
        with pytest.raises(ClientError, match="contains generations of an older topic 'f', which was created at"):
            export(spark, "f", broker.url, to)


@pytest.mark.long
def test_what_retention_took_unread_is_named(
    spark: Any, broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_process()
    to = Target(str(tmp_path))
    with Client(broker.url) as client:
        client.create_topic("t")
        publish(client, "t", 0, 10)
        client.flush("t")
        assert export(spark, "t", broker.url, to).rows == 10
        for start in (10, 20, 30):
            publish(client, "t", start, start + 10)
            client.flush("t")
        client.update_topic("t", retention={"max_bytes": 1})
        broker.terminate()
        broker.start()  # a leader's first round is at once
        wait_for(lambda: client.segments("t")[0]["start_offset"] > 10)
        start = client.segments("t")[0]["start_offset"]
        with pytest.raises(
            ClientError, match=rf"were deleted \(segment 0, offsets 10 to {start}\) before they were exported. With"
        ):
            export(spark, "t", broker.url, to)
        publish(client, "t", 40, 50)
        added = export(spark, "t", broker.url, to, skip_lost=True)
        assert added.lost == (f"segment 0, offsets 10 to {start}",)
        assert added.rows == 50 - start
    kept = [offset for _, offset, _ in positions(read_generation(spark, to.to))]
    assert kept == [*range(10), *range(start, 50)]


@pytest.mark.long
def test_a_folder_that_was_left_goes_once_its_number_is_taken(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    dead = tmp_path / f"gen=1-{'a' * 32}" / "_temporary" / "0"
    dead.mkdir(parents=True)
    to = Target(str(tmp_path))
    with Client(broker.url) as client:
        client.create_topic("left")
        publish(client, "left", 0, 5)
        assert export(spark, "left", broker.url, to).removed == ()
        publish(client, "left", 5, 9)
        for each in (dead, dead.parent, dead.parent.parent):
            os.utime(each, (0, 0))
        assert set(export(spark, "left", broker.url, to).removed) == {dead.parent.parent.name}
        assert positions(read_generation(spark, to.to)) == of_topic(client, "left")


def brokers(request: httpx.Request) -> httpx.Response:
    """Brokers of a topic with the open segments 2 and 3, which came from the removed 1, and that from the removed 0."""
    created = {"created_at": "2026-01-01T00:00:00Z"}
    lineage = {0: ([], [1]), 1: ([0], [2, 3]), 2: ([1], []), 3: ([1], [])}

    def segment(number: int, state: str, start: int, end: int) -> dict[str, Any]:
        before, after = lineage[number]
        bounds = {"start_offset": start, "flushed_offset": end, "end_offset": end, "ended": state != "open"}
        return {"id": number, "state": state, "predecessors": before, "successors": after, **bounds, **created}

    there = [segment(2, "open", 0, 4), segment(3, "open", 2, 8)]
    removed = {0: segment(0, "removed", 6, 6), 1: segment(1, "removed", 5, 5)}
    path = request.url.path
    if path.endswith("/segments"):
        return httpx.Response(200, json={"segments": there, "now": created["created_at"]})
    if "/segments/" in path:
        return httpx.Response(200, json=removed[int(path.rpartition("/")[2])])
    return httpx.Response(200, json={"path": "file:///t", "format": "json", "schema": None, **created})


@pytest.mark.parametrize(
    ("after", "wanted", "losses"),
    [
        (None, {2: (0, 4), 3: (2, 8)}, []),
        ({2: 4, 3: 8}, {}, []),
        ({2: 4, 3: 0}, {3: (2, 8)}, ["segment 3, offsets 0 to 2"]),
        ({2: 1, 3: 2}, {2: (1, 4), 3: (2, 8)}, []),
        ({1: 5}, {2: (0, 4), 3: (2, 8)}, ["segment 3, offsets 0 to 2"]),
        ({0: 6}, {2: (0, 4), 3: (2, 8)}, ["segment 1, offsets 0 to 5", "segment 3, offsets 0 to 2"]),
        (
            {0: 2},
            {2: (0, 4), 3: (2, 8)},
            [f"segment {n}, offsets {a} to {b}" for n, a, b in ((0, 2, 6), (1, 0, 5), (3, 0, 2))],
        ),
    ],
)
def test_offsets_go_on_over_segments_that_are_gone(
    after: dict[int, int] | None, wanted: dict[int, tuple[int, int]], losses: list[str]
) -> None:
    with Client("http://test", transport=httpx.MockTransport(brokers)) as client:
        found = Snapshot.fetch(client, "t", after)
    assert found.wanted == wanted
    assert [*map(str, found.losses)] == losses
    assert found.offsets == {2: 4, 3: 8}
    chosen = found.chosen()
    assert sorted((rows.segment, rows.end) for rows in chosen.files) == sorted(
        (n, end) for n, (_, end) in wanted.items()
    )


@pytest.mark.long
def test_generations_over_two_versions_of_a_schema(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    def fields(number: str, decimal: str, *more: dict[str, str]) -> dict[str, Any]:
        return {"fields": [{"name": "n", "type": number}, {"name": "d", "type": decimal}, *more]}

    to, newest = Target(str(tmp_path / "out")), Target(str(tmp_path / "newest"))
    old, new = {"n": 1, "d": "1.50"}, {"n": 2**40, "d": "12345678.25", "x": "y"}
    with Client(broker.url) as client:
        client.create_topic("v", format="typed", schema=fields("int", "decimal(5, 2)"))
        client.publish("v", [{"key": "a", "value": old}])
        assert export(spark, "v", broker.url, to).rows == 1
        client.evolve_schema("v", fields("long", "decimal(20, 2)", {"name": "x", "type": "string"}))
        client.publish("v", [{"key": "b", "value": new}])
        assert export(spark, "v", broker.url, to).rows == 1
        assert compact(spark, "v", broker.url, newest, Rules()).rows == 2
        for place in (to, newest):
            rows = sorted((row.n, str(row.d), row.x) for row in read_generation(spark, place.to).collect())
            assert rows == [(1, "1.50", None), (2**40, "12345678.25", "y")]
