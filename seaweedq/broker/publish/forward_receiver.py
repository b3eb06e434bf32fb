"""What other brokers forward: parcels for segments of this broker, each with a fate of its own."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from seaweedq.broker.log.append import EncodedRows
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.local_append import Taker
from seaweedq.broker.rpc.client import Trouble
from seaweedq.broker.rpc.forward_frames import Header, Outcome, Parcel
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.errors import NotOwner, SeaweedqError

THREAD_BYTES = 64 * 1024  # larger ones are checked in a worker thread


class Receiver:
    """Takes parcels."""

    def __init__(self, catalog: Catalog, ownership: Ownership, taker: Taker) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._taker = taker

    async def receive(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """An outcome for each; those that are new share a commit."""
        return await asyncio.gather(*map(self._receive, parcels))

    async def _receive(self, parcel: Parcel) -> Outcome:
        try:
            topic = await self._topic_of(parcel.header)
            segment = await self._ownership.opened(topic, parcel.header.segment)
            read: Any = asyncio.to_thread if parcel.header.length > THREAD_BYTES else _at_once
            header = parcel.header
            if header.part not in segment.source.parts:
                raise NotOwner(f"segment {segment.id} of {header.topic!r} has no part that begins at {header.part}")
            rows = await read(_rows_of, parcel, segment)
            return await self._taker.append(segment, header.part, rows, parcel.sequences)
        except SeaweedqError as error:
            return Outcome(trouble=Trouble.of(error))

    async def _topic_of(self, header: Header) -> Topic:
        topic = self._catalog.find(header.topic)
        if topic is None or topic.record.incarnation != header.incarnation:
            await self._catalog.look(header.topic, header.segment)
        topic = self._catalog.topic(header.topic)
        if topic.record.incarnation != header.incarnation:
            raise NotOwner(f"this broker knows another topic {header.topic!r}")
        if header.segment not in self._catalog.records(topic):
            await self._catalog.look(topic.name, header.segment)  # the other broker is ahead: it may have just come
        return topic


async def _at_once(work: Any, *args: Any) -> Any:
    return work(*args)


def _rows_of(parcel: Parcel, segment: OpenSegment) -> EncodedRows:
    rows = parcel.rows(segment.layout)
    return EncodedRows.of(rows, pa.py_buffer(parcel.payload))
