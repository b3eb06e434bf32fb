"""A topic's directory at each moment of its life, as every reader sees it: empty, young, under load, and flushed."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from seaweedq import Client
from tests.support.readers.topic_readers import Reader, assert_dense

pytestmark = pytest.mark.process

VALUE = pa.field("value", pa.string())
READINGS = 4


@pytest.mark.parametrize("topic", ["empty", "odd.parquet"])
def test_a_new_topic_is_an_empty_table(
    reader: Reader, topic: str, client: Client, directory: Callable[[str], str]
) -> None:
    client.create_topic(topic, initial_segments=3)
    assert reader.rows(directory(topic), VALUE).num_rows == 0


def test_a_young_topic_has_its_message_once_it_is_flushed(
    reader: Reader, client: Client, directory: Callable[[str], str]
) -> None:
    topic = f"young-{reader.name.replace(' ', '-')}"
    client.publish(topic, {"value": {"n": 1}})
    assert reader.rows(directory(topic), VALUE).num_rows == 0
    client.flush(topic)
    (row,) = reader.rows(directory(topic), VALUE).to_pylist()
    assert (row["segment"], row["_offset"], row["value"]) == (0, 0, '{"n":1}')
    assert row["_key"] is row["_headers"] is row["_expires"] is row["_reference"] is None


@pytest.fixture(scope="module")
def flushed(client: Client) -> list[dict[str, object]]:
    """What was published to the topic `flushed`, of four segments: some rows with all that a message may have."""
    began = datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC)
    messages = [
        {
            "value": [n, None, "é\u2028"],
            **({"key": f"k{n % 97}"} if n % 3 else {}),
            **({"headers": {"n": str(n), "empty": ""}} if n % 5 == 0 else {}),
            **({"timestamp": began + timedelta(hours=n), "expires_in_s": 3600.5} if n % 7 == 0 else {}),
        }
        for n in range(3000)
    ]
    client.create_topic("flushed", initial_segments=4)
    for start in range(0, len(messages), 500):
        client.publish("flushed", messages[start : start + 500])
        if start % 1000:
            client.flush("flushed")
    client.flush("flushed")
    return messages


def test_after_a_flush_the_acknowledged_messages_are_there_exactly(
    reader: Reader, flushed: list[dict[str, object]], directory: Callable[[str], str]
) -> None:
    table = reader.rows(directory("flushed"), VALUE)
    assert_dense(table)
    assert set(table["segment"].to_pylist()) == {0, 1, 2, 3}
    rows = sorted(table.to_pylist(), key=lambda row: int(row["value"].split(",")[0][1:]))
    now = datetime.now(UTC)
    for row, message in zip(rows, flushed, strict=True):
        assert row["value"] == f'[{message["value"][0]},null,"é\u2028"]'
        assert row["_key"] == message.get("key")
        assert dict(row["_headers"] or {}) == message.get("headers", {})
        if "timestamp" in message:
            assert row["_timestamp"] == message["timestamp"]
            assert abs(row["_expires"] - now - timedelta(seconds=3600.5)) < timedelta(minutes=5)
        else:
            assert abs(row["_timestamp"] - now) < timedelta(minutes=5)
            assert row["_expires"] is None
        assert row["_reference"] is None


class Load:
    """A thread that publishes the numbers from 0 on, and flushes: by age each second, and on request now and then."""

    def __init__(self, client: Client, topic: str) -> None:
        client.create_topic(topic, initial_segments=2, flush={"max_age_s": 1})
        self.begun = self.flushed = self.flushes = 0
        self._client, self._topic = client, topic
        self._turn = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            acknowledged = self.begun
            for _ in range(10):
                self.begun += 50
                batch = [{"value": n, "key": str(n)} for n in range(acknowledged, self.begun)]
                self._client.publish(self._topic, batch)
                acknowledged = self.begun
            self._client.flush(self._topic)
            with self._turn:
                self.flushed = acknowledged
                self.flushes += 1
                self._turn.notify_all()
                self._turn.wait(0.1)

    def next_flush(self) -> int:
        """Wait for a flush; how many messages it has brought into files."""
        with self._turn:
            goal = self.flushes + 1
            assert self._turn.wait_for(lambda: self.flushes >= goal, 30)
            return self.flushed

    def stop(self) -> None:
        """End it."""
        self._stop = True
        self._thread.join()


@pytest.fixture(scope="module")
def load(client: Client) -> Iterator[Load]:
    load = Load(client, "busy")
    yield load
    load.stop()


def test_while_a_producer_runs_each_listing_is_exact(
    reader: Reader, load: Load, directory: Callable[[str], str]
) -> None:
    for _ in range(READINGS):
        at_least = load.next_flush()
        table = reader.rows(directory("busy"), VALUE)
        assert_dense(table)
        values = table["value"].cast(pa.int64()).to_pylist()
        assert len(values) == len(set(values))
        assert set(range(at_least)) <= set(values) <= set(range(load.begun))
