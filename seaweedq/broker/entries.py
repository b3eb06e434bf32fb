"""Writing an entry: rows that a journal held first become the next Parquet file of a chain.

The one place that puts an entry together, for the flush, for recovery, and for the empty first file of a new topic.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from seaweedq.broker.failpoints import reach
from seaweedq.clock import Clock, Ids
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata, Seal, encode_entry
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.layout import Layout
from seaweedq.segments.producers import ProducerTable
from seaweedq.segments.schema import schema_id


@dataclass(frozen=True, slots=True)
class Source:
    """Which segment rows come from, and what they look like."""

    topic: str
    segment: int
    key_range: KeyRange
    layout: Layout


def known_producers(source: Source, chain: Chain) -> ProducerTable:
    """The producer table as of the chain's end."""
    if chain.last and chain.last.producers:
        return ProducerTable.decode(chain.last.producers)
    return ProducerTable(source.key_range)


class EntryWriter:
    """Appends entries in the name of one broker."""

    def __init__(self, cluster: str, broker: str, clock: Clock, ids: Ids) -> None:
        self._cluster = cluster
        self._broker = broker
        self._clock = clock
        self._ids = ids

    async def append(
        self,
        source: Source,
        chain: Chain,
        pieces: Sequence[tuple[int, pa.RecordBatch]],
        producers: ProducerTable,
        max_timestamp_us: int,
        seal: Seal | None = None,
    ) -> None:
        """Encode `pieces` (dense, from the chain's end) in a thread and append them. Raises Fenced."""
        name = chain.next
        metadata = EntryMetadata(
            cluster=self._cluster,
            topic=source.topic,
            segment=source.segment,
            low=source.key_range.low,
            high=source.key_range.high,
            sequence=name.sequence,
            first_offset=name.first_offset,
            next_offset=name.first_offset + sum(rows.num_rows for _, rows in pieces),
            broker=self._broker,
            nonce=self._ids.nonce(),
            schema_id=schema_id(source.layout.values),
            appended_us=self._clock.now_us(),
            max_timestamp_us=max_timestamp_us,
            producers=producers.encode(),
            seal=seal,
        )
        reach("entry.encode")
        data = await asyncio.to_thread(encode_entry, pieces, source.layout, metadata)
        reach("entry.append")
        await chain.append(metadata, memoryview(data))
        reach("entry.appended")
