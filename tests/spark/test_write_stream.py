"""`writeStream.format("seaweedq")`, and `foreachBatch` with a writeId: a batch that comes again is taken once."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
ROWS, KEYS = 20, 7


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


class Pipeline:
    """Files of rows, each a batch, which a query with one checkpoint writes into a topic."""

    def __init__(self, spark: Any, url: str, folder: Path, topic: str) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        self._options = {"url": url, "topic": topic}
        (folder / "in").mkdir()

    def feed(self) -> None:
        """Adds a batch."""
        rows = range(self._files * ROWS, (self._files + 1) * ROWS)
        lines = [json.dumps({"_key": str(n % KEYS), "value": str(n)}) for n in rows]
        file = self._folder / "in" / f"{self._files}.json"
        file.write_text("\n".join(lines))
        self._files += 1
        os.utime(file, (self._files, self._files))  # the source takes files by their times

    def run(self, sink: Callable[[Any, int], None] | None = None) -> Any:
        """Runs the query until all is written, by the sink, or by a function for each batch."""
        rows = self._rows().coalesce(1).writeStream
        made = rows.foreachBatch(sink) if sink else rows.format("seaweedq").options(**self._options)
        return self._ended(made, "at")

    def run_complete(self) -> None:
        """Has the query count all rows that there are."""
        counted = self._rows().groupBy("value").count().select("value").writeStream.outputMode("complete")
        self._ended(counted.format("seaweedq").options(**self._options), "counts")

    def _rows(self) -> Any:
        reader = self._spark.readStream.schema("_key string, value string").option("maxFilesPerTrigger", 1)
        return reader.json(str(self._folder / "in"))

    def _ended(self, made: Any, place: str) -> Any:
        query = made.option("checkpointLocation", str(self._folder / place)).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    def forget(self, *entries: str) -> None:
        """Has the checkpoint be as before: `commits/1` was not there when a query died in batch 1, or just behind."""
        for entry in map(Path, entries):
            for name in (entry.name, f".{entry.name}.crc"):
                (self._folder / "at" / entry.parent / name).unlink()

    def check(self, client: Client, topic: str) -> None:
        """All rows are in the topic once, each key in its order."""
        found: dict[str, list[int]] = {}
        for row in client.read_table(topic, columns=["_key", "value"], live=True).to_pylist():
            found.setdefault(row["_key"], []).append(int(row["value"]))
        assert found == {str(key): [*range(key, self._files * ROWS, KEYS)] for key in range(KEYS)}


@pytest.fixture
def pipeline(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Callable[[str], Pipeline]:
    return lambda topic: Pipeline(spark, broker.url, tmp_path, topic)


def test_a_batch_that_comes_again_is_taken_once(client: Client, pipeline: Callable[[str], Pipeline]) -> None:
    client.create_topic("once")
    stream = pipeline("once")
    stream.feed()
    stream.feed()
    query = stream.run()
    stream.check(client, "once")
    stream.forget("commits/1")
    stream.feed()
    assert stream.run().id == query.id
    stream.check(client, "once")
    newest = client.last_write("once", f"spark.{query.id}")
    assert (newest.number, newest.state, newest.count) == (2, "done", ROWS)
    stream.forget("commits/2", "commits/1", "offsets/2")
    with pytest.raises(Exception, match=r"write 1 of .* is older than write 2"):
        stream.run()
    stream.check(client, "once")


@pytest.mark.long
def test_foreach_batch_with_a_write_id(
    spark: Any, broker: BrokerProcess, client: Client, pipeline: Callable[[str], Pipeline]
) -> None:
    client.create_topic("each")
    stream = pipeline("each")

    def sink(frame: Any, batch: int) -> None:
        options = {"url": broker.url, "topic": "each", "writeId": "each-batch", "writeNumber": str(batch)}
        frame.write.format("seaweedq").options(**options).mode("append").save()

    stream.feed()
    stream.run(sink)
    stream.forget("commits/0")
    stream.feed()
    stream.run(sink)
    stream.check(client, "each")
    with pytest.raises(Exception, match="a write cannot replace a topic's messages"):
        stream.run_complete()
