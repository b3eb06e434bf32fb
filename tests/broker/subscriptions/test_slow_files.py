"""A pull answers with what it has after a while: many small files on a slow store take it longer than a client waits,
and whoever gave up found no more of them read the next time.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.log import reader
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.segments import chain
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, offsets, publish, pull, running, subscribe

FILES, SEGMENTS, READ_S = 6, 3, 0.4


class Slow:
    """A clock that goes on by READ_S with each file that is read."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.read = clock, 0

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self.read * READ_S

    def now_us(self) -> int:
        return self._clock.now_us()

    def load(self, *arguments: Any) -> Any:
        self.read += 1
        return _load(*arguments)


_load = reader.load


async def test_a_pull_reads_no_longer_than_a_client_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        slow = Slow(broker.process.clock)
        topic = await make_topic(broker, segments=SEGMENTS)
        log, dispatcher = inside.segment_log(broker), inside.dispatcher(broker)
        for n in range(FILES):
            await publish(broker, topic, *(f"{n}-{m}" for m in range(40)))
            for segment in list(log.dirty):
                await log.flusher.flush(segment)
        await subscribe(broker, topic)
        monkeypatch.setattr(reader, "load", slow.load)
        for each in (inside.reader(broker), privates.leasing(privates.pulling(dispatcher))):
            monkeypatch.setattr(each, "_clock", slow, raising=False)
        found: list[int] = []
        while got := offsets(await pull(dispatcher, topic, "s", None, 10_000, 0)):
            assert slow.read <= 4  # then LOOK_S is over
            found += got
            slow.read = 0
        assert len(found) == 40 * FILES


async def _files(broker: Broker) -> tuple[Topic, OpenSegment]:
    """A topic whose one segment has FILES files, of a message each."""
    topic = await make_topic(broker)
    [segment] = await inside.ownership(broker).mine(topic)
    for n in range(FILES):
        await publish(broker, topic, str(n))
        await inside.flusher(broker).flush(segment)
    return topic, segment


async def test_a_read_of_a_segment_ends_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        slow = Slow(broker.process.clock)
        _, segment = await _files(broker)
        monkeypatch.setattr(reader, "load", slow.load)
        monkeypatch.setattr(inside.reader(broker), "_clock", slow, raising=False)
        pieces = await inside.reader(broker).read(segment, 0, 100, 1 << 20)
        assert [first for first, _ in pieces] == [0, 1, 2]
        pieces = await inside.reader(broker).read(segment, 3, 100, 1 << 20)
        assert [first for first, _ in pieces] == [3, 4, 5]


async def test_what_a_broker_wrote_it_need_not_ask_the_store_for(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        _, segment = await _files(broker)
        before = broker.process.store.requests["size"]
        assert sum(await inside.reader(broker).sizes_since(segment, 0)) > FILES * 1000
        assert broker.process.store.requests["size"] == before


async def test_a_size_is_estimated_where_the_store_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        slow = Slow(broker.process.clock)
        _, segment = await _files(broker)
        size = sum(await inside.reader(broker).sizes_since(segment, 0))
        list_page, asked = segment.chain._page, 0

        async def page(after: str) -> Any:
            nonlocal asked
            asked, slow.read = asked + 1, slow.read + 3
            return await list_page(after)

        privates.known(segment.chain).clear()
        monkeypatch.setattr(chain, "PAGE", 2)
        monkeypatch.setattr(segment.chain, "_page", page)
        monkeypatch.setattr(inside.reader(broker), "_clock", slow)
        assert abs(sum(await inside.reader(broker).sizes_since(segment, 0)) - size) < size / 100
        assert asked == 1


async def test_a_file_is_read_to_its_end_once_though_all_who_asked_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        _, segment = await _files(broker)
        begun, go_on, loads = threading.Event(), threading.Event(), 0

        def held(*arguments: Any) -> Any:
            nonlocal loads
            loads += 1
            begun.set()
            assert go_on.wait(20)
            return _load(*arguments)

        monkeypatch.setattr(reader, "load", held)
        asking = [asyncio.create_task(inside.reader(broker).read(segment, 0, 1, 1 << 20)) for _ in range(3)]
        assert await asyncio.to_thread(begun.wait, 20)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        again = asyncio.create_task(inside.reader(broker).read(segment, 0, 1, 1 << 20))
        await asyncio.sleep(0)
        go_on.set()
        assert [first for first, _ in await again] == [0]
        assert loads == 1
