"""Wakes the readers of a topic that wait for messages, once there are some.

A topic's own signal comes for much else, acks among it. So one task a topic listens to it for all readers, looks at the
ends of the open segments, those of other brokers too, and wakes the readers where one has risen or a segment's record
has changed. It ends with the last reader.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import SeaweedqError

LOOK_S = 5.0  # below LINGER_S of readable_segments: its long polls must not end
FAILED_S = 0.2
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class TailWatch:
    """The readers of one topic; `signal` wakes them."""

    topic: Topic
    signal: Signal = field(default_factory=Signal)
    readers: int = 0
    task: asyncio.Task[None] | None = None

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Returns once the signal's count is no longer `seen`, or after `timeout_s`."""
        if self.signal.count == seen:
            await self.signal.wait(timeout_s)


class TailWatches:
    """The watches of one broker, by topic. `ended` is set once all streams have to end, since the broker leaves."""

    def __init__(self, catalog: Catalog, readables: ReadableSegments) -> None:
        self.ended = asyncio.Event()
        self._catalog = catalog
        self._readables = readables
        self._watches: dict[Topic, TailWatch] = {}

    def __len__(self) -> int:
        return sum(watch.readers for watch in self._watches.values())

    def end(self) -> None:
        """Ends all streams, also those that come later."""
        self.ended.set()
        for watch in self._watches.values():
            watch.signal.wake()

    @contextmanager
    def following(self, topic: Topic) -> Iterator[TailWatch]:
        """Gives a reader its watch for as long as the block runs."""
        watch = self._watches.get(topic)
        if watch is None:
            watch = self._watches[topic] = TailWatch(topic)
            watch.task = asyncio.create_task(self._follow(watch), name=f"tail watch of {topic.name}")
        watch.readers += 1
        try:
            yield watch
        finally:
            watch.readers -= 1
            if not watch.readers:
                del self._watches[topic]
                if watch.task:
                    watch.task.cancel()

    async def _follow(self, watch: TailWatch) -> None:
        topic, known = watch.topic, None
        while True:
            seen, pause_s = topic.signal.count, LOOK_S
            try:
                self._catalog.check(topic)
                now = topic.moved.count, await self._ends(topic)
            except SeaweedqError:
                now, pause_s = None, FAILED_S  # its readers find the reason themselves
            except Exception:
                logger.exception("the ends of %s could not be read; trying again", topic.name)
                now, pause_s = None, LOOK_S
            if now != known or now is None:
                known = now
                watch.signal.wake()
            if topic.signal.count == seen:
                await topic.signal.wait(pause_s)
            else:
                await asyncio.sleep(0)

    async def _ends(self, topic: Topic) -> dict[int, int]:
        records = self._readables.records(topic)
        found, _ = await self._readables.available(
            topic, [n for n, one in records.items() if one.record.state == "open"]
        )
        return {segment.id: segment.end for segment in found}
