"""`Client.read_table` on a real broker: files alone, or complete to the last acknowledged message, and no row twice."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.topic_readers import assert_dense

pytestmark = pytest.mark.process

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
