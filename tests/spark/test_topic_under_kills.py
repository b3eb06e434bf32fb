"""read_topic of a topic at three brokers, which are killed one after the other while it is
written, flushed and split: no row is missing, and none comes twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.errors import SeaweedqError
from seaweedq.spark import read_topic
from tests.support.processes.together import BROKERS, Together

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.usefixtures("long_run"),
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


def test_while_brokers_are_killed_and_segments_split(spark: Any, together: Together) -> None:
    writing = Writing(together.urls)
    with writing.running():
        for killed in range(BROKERS):
            split(together, writing)
            check(spark, together, writing)
            together.signal(killed)
            check(spark, together, writing)
    check(spark, together, writing)
    assert writing.acknowledged == writing.sent > 0
