"""A topic as its readers see it: empty, young, under load, flushed, and while retention deletes files. Each reading has
the whole files that were there after some listing, or is a clear error; a table that brokers give is whole in any case.
`Client.read_table` has files alone, or all to the last acknowledged message, and no row twice.
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.segments.entry import EntryName
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.topic_readers import READERS, SPARK, Reader, assert_dense, spark_reader
from tests.support.tiers import marked

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


FILES, ROWS = 12, 3
OFFSETS = pa.schema([pa.field("_offset", pa.int64())])
GONE = ("No such file", "does not exist", "No files found", "not found", "No match", "expanded paths were empty")


@pytest.fixture(params=[marked(SPARK, "spark", "long"), "duckdb"])
def reader(request: pytest.FixtureRequest) -> Reader:
    if request.param == SPARK:
        return spark_reader(request.getfixturevalue("spark"))
    return READERS[request.param]


@pytest.fixture
def files(client: Client, directory: Callable[[str], str], reader: Reader) -> list[Path]:
    """The files of a topic, the oldest first."""
    topic = f"going-{uuid4().hex}"
    client.create_topic(topic)
    for at in range(FILES):
        client.publish(topic, [{"value": ROWS * at + n} for n in range(ROWS)])
        client.flush(topic)
    return sorted(Path(directory(topic)).rglob("*.parquet"))


def offsets(reader: Reader, opened: Any) -> list[int] | None:
    """What a reading gives, which must be whole files without a gap; None for a clear error."""
    try:
        rows = reader.arrow(opened(), OFFSETS)
    except Exception as error:
        if any(text in str(error) for text in GONE):
            return None
        raise
    found: list[int] = sorted(rows["_offset"].to_pylist())
    assert found == list(range(found[0], FILES * ROWS)), "rows are missing behind the first one"
    assert found[0] % ROWS == 0, "a file is read whole or not at all"
    return found


def test_files_go_between_listing_and_reading(files: list[Path], reader: Reader) -> None:
    folder = str(files[0].parent.parent)
    opened = reader.open(folder)
    for path in files[:5]:
        path.unlink()
    offsets(reader, lambda: opened)  # some list again when they read
    first = EntryName.parse(files[5].name).first_offset
    assert offsets(reader, lambda: reader.open(folder)) == list(range(first, FILES * ROWS))


@pytest.mark.parametrize("reader", ["duckdb"], indirect=True)
def test_files_go_while_they_are_read(files: list[Path], reader: Reader) -> None:
    folder = str(files[0].parent.parent)
    done = threading.Event()

    def delete() -> None:
        for path in files[:-2]:
            path.unlink()
            done.wait(0.02)
        done.set()

    going = threading.Thread(target=delete)
    going.start()
    found = []
    while not done.is_set():
        found.append(offsets(reader, lambda: reader.open(folder)))
    going.join()
    assert any(found)
    assert offsets(reader, lambda: reader.open(folder)) == list(range(FILES * ROWS - 2 * ROWS, FILES * ROWS))


SEGMENTS = 3
BATCH = 40


class Ledger:
    """What a producer's thread has begun to publish, and what was acknowledged: the numbers below each."""

    def __init__(self, client: Client, topic: str) -> None:
        client.create_topic(topic, initial_segments=SEGMENTS)
        self.begun = self.acknowledged = self.flushes = 0
        self._client, self._topic = client, topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._flush)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._stop.is_set():
            numbers = range(self.begun, self.begun + BATCH)
            self.begun += BATCH
            self._client.publish(self._topic, [{"value": n, "key": str(n)} for n in numbers])
            self.acknowledged = self.begun

    def _flush(self) -> None:
        while not self._stop.is_set():
            self._client.flush(self._topic)
            self.flushes += 1

    @property
    def runs(self) -> bool:
        """Whether neither thread has failed."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End both threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def ledger(client: Client) -> Iterator[Ledger]:
    ledger = Ledger(client, "live")
    yield ledger
    ledger.stop()


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([("segment", "ascending"), ("_offset", "ascending")])


@pytest.mark.long
def test_live_is_complete_and_never_doubled_while_flushes_race_it(ledger: Ledger, client: Client) -> None:
    readings = 0
    while readings < 15 or ledger.flushes < 15:
        at_least = ledger.acknowledged
        table = _sorted(client.read_table("live", columns=["segment", "_offset", "value", "_key"], live=True))
        at_most = ledger.begun
        assert_dense(table)
        values = list(map(int, table["value"].to_pylist()))
        assert table["_key"].equals(table["value"])
        assert len(set(values)) == len(values)
        assert set(range(at_least)) <= set(values) <= set(range(at_most))
        readings += 1
        assert ledger.runs
    ledger.stop()
    assert client.read_table("live", columns=["_offset"], live=True).num_rows == ledger.acknowledged == ledger.begun


def test_without_live_it_is_the_files(client: Client) -> None:
    client.create_topic("files", initial_segments=SEGMENTS)
    client.publish("files", [{"value": n, "key": str(n)} for n in range(100)])
    assert client.read_table("files").num_rows == 0
    client.flush("files")
    client.publish("files", [{"value": n, "key": str(n)} for n in range(100, 130)])
    assert sorted(map(int, client.read_table("files")["value"].to_pylist())) == list(range(100))
    assert sorted(map(int, client.read_table("files", live=True)["value"].to_pylist())) == list(range(130))


def test_columns_are_pruned_in_files_and_tail(client: Client) -> None:
    message = {"value": 1, "key": "k", "headers": {"h": "x"}, "expires_in_s": 60}
    client.publish("pruned", [message, {"value": 2}])
    client.flush("pruned")
    client.publish("pruned", [{"value": 3}, message])
    every = client.read_table("pruned", live=True)
    assert every.schema.equals(client.read_table("pruned").schema)
    for name in every.column_names:
        alone = client.read_table("pruned", columns=[name], live=True)
        assert alone.column_names == [name]
        assert alone[name].to_pylist() == every[name].to_pylist()
    order = ["value", "segment", "_headers"]
    assert client.read_table("pruned", columns=order, live=True).column_names == order
    assert [dict(each or []) for each in every["_headers"].to_pylist()] == [{"h": "x"}, {}, {}, {"h": "x"}]
    assert every.schema.field("segment").type == pa.int32()


def test_a_topic_with_nothing_reads_live(client: Client) -> None:
    client.create_topic("nothing", initial_segments=SEGMENTS)
    table = client.read_table("nothing", live=True)
    assert (table.num_rows, "value" in table.column_names) == (0, True)


def test_live_is_complete_after_a_kill(broker_process: Callable[..., BrokerProcess]) -> None:
    """The tail is what the journal has."""
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=SEGMENTS)
        for part in range(3):
            client.publish("t", [{"value": n, "key": str(n)} for n in range(part * 100, part * 100 + 100)])
            if part == 0:
                client.flush("t")
        broker.kill()
        broker.start()
        table = _sorted(client.read_table("t", columns=["segment", "_offset", "value"], live=True))
    assert_dense(table)
    assert sorted(map(int, table["value"].to_pylist())) == list(range(300))
