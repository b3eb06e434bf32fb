"""`spark.readStream.format("seaweedq")`: a sink has what was acknowledged, once, each key in its order."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
KEYS = 7


class Sink:
    """Rows as batches brought them; a batch that comes again takes the place of the first."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.fails_in: int | None = None

    def __call__(self, frame: Any, batch: int) -> None:
        rows = frame.select("segment", "_offset", "_key", "value").collect()
        if batch == self.fails_in:
            raise RuntimeError("the sink fails")
        self.batches[batch] = sorted(rows, key=lambda row: (row.segment, row["_offset"]))

    def by_key(self) -> dict[str, list[int]]:
        """The values of each key in the order of batches; within a batch a key is of one segment."""
        found: dict[str, list[int]] = {}
        for batch in sorted(self.batches):
            for row in self.batches[batch]:
                found.setdefault(row["_key"], []).append(int(row.value))
        return found


class Writer:
    """Publishes numbers, each with the key of its remainder."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic, self.count = client, topic, 0
        client.create_topic(topic, initial_segments=2)

    def publish(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        self._client.publish(self._topic, [{"key": str(n % KEYS), "value": n} for n in numbers])
        self.count += count

    def check(self, sink: Sink) -> None:
        """All was delivered once, and each key in its order."""
        assert sink.by_key() == {str(key): [*range(key, self.count, KEYS)] for key in range(min(KEYS, self.count))}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
def stream(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Any:
    """Runs a query over a topic until it has what is there, with one checkpoint."""

    def run(topic: str, sink: Sink, **options: Any) -> Any:
        reader = spark.readStream.format("seaweedq").options(url=broker.url, topic=topic, **options)
        writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / topic))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert not query.isActive
        return query

    return run


def split(http: httpx.Client, topic: str, segment: int) -> None:
    assert http.post(f"/v1/topics/{topic}/segments/{segment}/split").status_code == 200


@pytest.mark.long
def test_available_now_over_a_split(stream: Any, client: Client, http: httpx.Client) -> None:
    writer, sink = Writer(client, "once"), Sink()
    writer.publish(30)
    client.flush("once")
    split(http, "once", 0)
    writer.publish(30)
    stream("once", sink, startingOffsets="earliest")
    writer.check(sink)


@pytest.mark.long
def test_restarts_and_failures_over_splits(stream: Any, client: Client, http: httpx.Client) -> None:
    """The second query begins where the first one ended, and in between its segments were split and merged."""
    writer, sink = Writer(client, "steps"), Sink()
    writer.publish(100)
    client.flush("steps")
    writer.publish(20)
    query = stream("steps", sink, startingOffsets="earliest", maxOffsetsPerTrigger=70)
    assert all(progress["numInputRows"] <= 70 for progress in query.recentProgress)
    writer.check(sink)
    split(http, "steps", 0)
    writer.publish(50)
    split(http, "steps", 2)
    writer.publish(50)
    client.flush("steps")
    sink.fails_in = max(sink.batches) + 2
    with pytest.raises(Exception, match="the sink fails"):
        stream("steps", sink, startingOffsets="earliest")
    sink.fails_in = None
    writer.publish(10)
    query = stream("steps", sink, startingOffsets="earliest")
    writer.check(sink)
    latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    assert latest["backlog"] == 0


@pytest.mark.long
def test_a_batch_of_the_offset_log_not_yet_committed_has_the_same_rows(
    stream: Any, client: Client, http: httpx.Client, tmp_path: Path
) -> None:
    """A query died before its batch, within it or behind it; since then its topic was flushed and split."""
    writer, sink = Writer(client, "logs"), Sink()
    writer.publish(60)
    stream("logs", sink, startingOffsets="earliest", maxOffsetsPerTrigger=25)
    for _ in range(2):
        split(http, "logs", 0 if writer.count == 60 else 1)
        writer.publish(40)
        client.flush("logs")
        last = max(sink.batches)
        done = sink.batches.pop(last)
        for file in (f"{last}", f".{last}.crc"):
            (tmp_path / "logs" / "commits" / file).unlink()
        stream("logs", sink, startingOffsets="earliest", maxOffsetsPerTrigger=25)
        assert sink.batches[last] == done
        writer.check(sink)


@pytest.mark.long
def test_a_query_that_goes_on_while_its_topic_changes(
    spark: Any, broker: BrokerProcess, client: Client, http: httpx.Client, tmp_path: Path
) -> None:
    """Splits, merges and flushes, and the broker is killed once."""
    writer, sink = Writer(client, "live"), Sink()
    reader = spark.readStream.format("seaweedq").options(url=broker.url, topic="live", startingOffsets="earliest")
    sunk = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "live"))
    query = sunk.trigger(processingTime="100 milliseconds").start()
    ready = threading.Event()
    try:
        for step in range(6):
            writer.publish(40)
            opened = [one["id"] for one in client.segments("live") if one["state"] == "open"]
            if step in (0, 2):
                split(http, "live", opened[0])
            if step == 3:
                body = {"with": opened[1]}
                http.post(f"/v1/topics/live/segments/{opened[0]}/merge", json=body)
            if step == 4:
                broker.kill()
                broker.start()
            if step % 2:
                client.flush("live")
        while sum(map(len, sink.batches.values())) < writer.count:
            assert query.isActive, query.exception()
            ready.wait(0.2)
    finally:
        query.stop()
    writer.check(sink)
