"""read_topic of a topic at three brokers that is written, flushed and split, while one of them is killed before the
call, one between the map and the list of files, and one stands still there for longer than its lease: no row is
missing, and none comes twice."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.errors import SeaweedqError
from seaweedq.spark import read_topic, topic_table
from tests.support.processes.together import BROKERS, LEASE_S, Together

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.long,
]
ROWS = 50


class Writing:
    """A producer and a thread that flushes: the numbers that were sent, and those that are acknowledged."""

    def __init__(self, urls: list[str]) -> None:
        self.sent = self.acknowledged = 0
        self._urls, self._over = urls, threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._flush)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs both meanwhile."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def _publish(self) -> None:
        with Client(self._urls) as client, client.producer("t", linger_ms=1) as producer:
            while not self._over.is_set():
                for number in range(self.sent, self.sent + ROWS):
                    producer.send(number, key=str(number % 97))
                self.sent += ROWS
                producer.flush()
                self.acknowledged = self.sent

    def _flush(self) -> None:
        with Client(self._urls) as client:
            while not self._over.wait(0.2):
                try:
                    client.flush("t")
                except SeaweedqError:
                    continue  # a broker is dead: the next time


def check(spark: Any, brokers: Together, writing: Writing) -> None:
    """A read has all that was acknowledged before, nothing twice, and nothing that nobody sent."""
    before = writing.acknowledged
    frame = read_topic(spark, "t", brokers.urls)
    found = sorted(int(row.value) for row in frame.select("value").collect())
    assert len(found) == len({*found})
    assert {*range(before)} <= {*found} <= {*range(writing.sent)}


def split(brokers: Together, writing: Writing) -> None:
    """Splits a segment, at whichever broker answers."""
    with Client(brokers.urls) as client:
        opened = [one["id"] for one in client.segments("t") if one["state"] == "open"]
    for broker in range(BROKERS):
        try:
            if brokers.ask("POST", broker, f"/v1/topics/t/segments/{opened[0]}/split").status_code == 200:
                return
        except httpx.TransportError:
            continue


def stand_still(brokers: Together, broker: int) -> None:
    """Stops a broker for longer than its lease, and returns once it stands still. Its segments wait for it: a process
    that is stopped keeps the lock of its journals."""
    still = threading.Event()

    def stand() -> None:
        with brokers.stopped(broker):
            still.set()
            time.sleep(LEASE_S + 2)

    threading.Thread(target=stand).start()
    assert still.wait(30)


@pytest.fixture
def behind_the_map(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has the next read do something once it knows the map, before it lists files."""
    todo: list[Callable[[], None]] = []
    plan = topic_table.plan

    def planned(*given: Any, **more: Any) -> Any:
        found = plan(*given, **more)
        while todo:
            todo.pop()()
        return found

    monkeypatch.setattr(topic_table, "plan", planned)
    return todo.append


def test_while_brokers_are_killed_or_stopped_and_segments_split(
    spark: Any, together: Together, behind_the_map: Callable[[Callable[[], None]], None]
) -> None:
    writing = Writing(together.urls)
    with writing.running():
        split(together, writing)
        check(spark, together, writing)
        together.signal(0)
        check(spark, together, writing)
        for broker, strike in ((1, together.signal), (2, partial(stand_still, together))):
            split(together, writing)
            behind_the_map(partial(strike, broker))
            check(spark, together, writing)
    check(spark, together, writing)
    assert writing.acknowledged == writing.sent > 0
