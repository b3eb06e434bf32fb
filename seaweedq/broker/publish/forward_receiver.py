"""Appending rows that other brokers forward to segments of this broker, each frame with an outcome of its own."""

import asyncio
from collections.abc import Callable, Sequence

import pyarrow as pa

from seaweedq.broker.log.append import EncodedRows
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.local_append import LocalAppender, untaken
from seaweedq.broker.rpc.client import ErrorMessage
from seaweedq.broker.rpc.forward_frames import ForwardFrame, ForwardHeader, Outcome
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, SeaweedqError

THREAD_BYTES = 64 * 1024  # larger ones are checked in a worker thread


class ForwardReceiver:
    """Appends forwarded rows, until a deadline that begins with their request."""

    def __init__(
        self, catalog: Catalog, ownership: Ownership, local: LocalAppender, deadline: Callable[[], Deadline]
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._local = local
        self._deadline = deadline

    async def receive(self, frames: Sequence[ForwardFrame]) -> list[Outcome]:
        """Returns an outcome for each frame. Rows that are new share a commit."""
        return await asyncio.gather(*map(self._receive, frames))

    async def _receive(self, frame: ForwardFrame) -> Outcome:
        header, deadline = frame.header, self._deadline()
        try:
            segment = await self._opened(header, deadline)
            if header.part not in segment.source.parts:
                raise NotOwner(f"segment {segment.id} of {header.topic!r} has no part that begins at {header.part}")
            in_thread = header.length > THREAD_BYTES
            rows = await asyncio.to_thread(_read, frame, segment) if in_thread else _read(frame, segment)
            return await self._local.append(segment, header.part, rows, frame.sequences, deadline)
        except SeaweedqError as error:
            return Outcome(trouble=ErrorMessage.of(error))

    async def _opened(self, header: ForwardHeader, deadline: Deadline) -> OpenSegment:
        async def opened() -> OpenSegment:
            return await self._ownership.opened(await self._topic_of(header), header.segment)

        try:
            return await deadline.bound(opened())
        except TimeoutError:
            raise NotOwner(untaken(deadline).detail) from None  # certainly not appended

    async def _topic_of(self, header: ForwardHeader) -> Topic:
        topic = self._catalog.find(header.topic)
        if topic is None or topic.record.incarnation != header.incarnation:
            await self._catalog.look(header.topic, header.segment)
        topic = self._catalog.topic(header.topic)
        if topic.record.incarnation != header.incarnation:
            raise NotOwner(f"this broker knows another topic {header.topic!r}")
        if header.segment not in self._catalog.records(topic):
            await self._catalog.look(topic.name, header.segment)  # the other broker is ahead: it may have just come
        return topic


def _read(frame: ForwardFrame, segment: OpenSegment) -> EncodedRows:
    rows = frame.rows(segment.layout)
    return EncodedRows.of(rows, pa.py_buffer(frame.payload))
