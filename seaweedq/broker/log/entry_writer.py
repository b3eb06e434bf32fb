"""Writing an entry: rows that a journal held first become the next Parquet file of a chain.

The flush, recovery, and the creation of a topic (for its empty first file) all put entries together here. So are the
markers of schemas' versions, which are files without rows beside the chains.
"""

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from seaweedq.checks import reach, require
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.records import SegmentRecord
from seaweedq.errors import ChainDamaged
from seaweedq.formats import Level
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import (
    MARKERS,
    EntryMetadata,
    EntryName,
    Seal,
    encode_entry,
    oldest_upload,
    open_entry,
    segment_folder,
)
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.layout import Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.terms import FIRST_TERM, Tenure, Term
from seaweedq.storage.interface import ObjectStore


@dataclass(frozen=True, slots=True)
class Source:
    """A segment as its record describes it, and the layout of its rows. One that is sealed has no owner. What is
    written states `owner` and `term`."""

    topic: str
    segment: int
    key_range: KeyRange
    layout: Layout
    cuts: tuple[int, ...] = ()
    predecessors: tuple[int, ...] = ()
    owner: str | None = None
    term: Term = FIRST_TERM

    @property
    def parts(self) -> tuple[int, ...]:
        """The low ends of the range's parts."""
        return (self.key_range.low, *self.cuts)

    @staticmethod
    def from_record(topic: str, segment: int, record: SegmentRecord, layout: Layout) -> "Source":
        """Returns the source that a segment's record describes."""
        key_range = KeyRange(record.low, record.high)
        return Source(topic, segment, key_range, layout, record.cuts, record.predecessors, record.owner, record.term)


async def known_producers(
    store: ObjectStore, source: Source, chain: Chain, is_gone: Callable[[int], bool]
) -> ProducerTables:
    """Returns the producer tables as of the chain's end, or of the predecessors' seals if it has no entry yet.
    Raises ChainDamaged, NeedsNewerBroker.

    Retention leaves a predecessor its seal until each successor has an entry. So only behind a coordination that was
    rebuilt (broker/rebuild/lineage) one without files `is_gone`, and its tables with it.
    """
    if chain.last:
        return _tables(chain, chain.last, source.segment)
    asked = (_sealed_producers(store, source.topic, number, is_gone) for number in source.predecessors)
    found = [one for one in await asyncio.gather(*asked) if one]
    return ProducerTables.inherited(source.segment, source.key_range, source.cuts, found)


async def _sealed_producers(
    store: ObjectStore, topic: str, segment: int, is_gone: Callable[[int], bool]
) -> ProducerTables | None:
    chain = Chain(store, topic, segment)
    await chain.open()
    if chain.last is None and is_gone(segment):
        return None
    if chain.last is None or chain.last.seal is None:
        raise ChainDamaged(
            f"the segment in {chain.folder} was replaced, but its files do not end with a seal (the entry that names "
            "the segment's successors)",
            name=chain.folder,
        )
    return _tables(chain, chain.last, segment)


def _tables(chain: Chain, last: EntryMetadata, segment: int) -> ProducerTables:
    """The journal may have lost what was in the tail, by an accepted loss; else its replay records that again."""
    try:
        tables = ProducerTables.decode(last.producers, segment)
        tables.forget_above(chain.end)
        return tables
    except ValueError as error:
        raise ChainDamaged(
            f"the sequence numbers of producers in the last file of {chain.folder} cannot be read: {error}",
            name=chain.folder,
        ) from error


class EntryWriter:
    """Appends entries in the name of one broker, in the forms of the cluster's level."""

    def __init__(self, cluster: str, broker: str, clock: Clock, ids: Ids, level: Level) -> None:
        self._cluster = cluster
        self._broker = broker
        self._clock = clock
        self._ids = ids
        self._level = level

    async def append(
        self,
        source: Source,
        chain: Chain,
        rows: Sequence[tuple[int, pa.RecordBatch]],
        producers: ProducerTables,
        max_timestamp_us: int,
        seal: Seal | None = None,
        topic_record: dict[str, Any] | UnsetType = UNSET,
    ) -> None:
        """Encodes rows, each with its first offset, in a thread and appends them, with the producers whose lifetime is
        not over. Raises Fenced, and InvariantViolated unless they are dense and begin at the chain's end."""
        name, last = chain.next, chain.last
        end = name.first_offset
        tenure = Tenure(source.term, source.owner or "")
        for first, some in rows:
            require(
                first == end,
                "rows from offset %d cannot be written to %s, which ends at offset %d",
                first,
                chain.folder,
                end,
            )
            end += some.num_rows
        producers.expire(self._clock.monotonic_s())
        metadata = EntryMetadata(
            cluster=self._cluster,
            topic=source.topic,
            segment=source.segment,
            low=source.key_range.low,
            high=source.key_range.high,
            sequence=name.sequence,
            first_offset=name.first_offset,
            next_offset=end,
            broker=self._broker,
            nonce=self._ids.nonce(),
            schema_id=source.layout.schema_id,
            appended_us=self._clock.now_us(),
            max_timestamp_us=max_timestamp_us,
            producers=producers.encode(self._level()),
            seal=seal,
            term=tenure.term,
            owner=tenure.owner,
            since=last.since if last and last.tenure == tenure else name.first_offset,
            topic_record=topic_record,
        )
        reach("entry.encode")
        data = await asyncio.to_thread(_encode, rows, source.layout, metadata)
        reach("entry.append")
        await chain.append(metadata, memoryview(data))
        reach("entry.appended")

    async def put_marker(
        self, store: ObjectStore, topic: str, incarnation: int, layout: Layout, record: dict[str, Any]
    ) -> None:
        """Puts the marker of a version of a topic's schema (broker/topics/schema_versions), with the `record` of the
        version as coordination has it, unless it is there. One with other columns is replaced. Raises
        StoreUnavailable."""
        place = EntryName.of_marker(incarnation, layout.schema_id)
        name = f"{segment_folder(topic, MARKERS)}{place}"
        metadata = EntryMetadata(
            *(self._cluster, topic, MARKERS, 0, 0, place.sequence, incarnation, incarnation, self._broker),
            *(self._ids.nonce(), layout.schema_id, self._clock.now_us(), 0, b""),
            schema_record=record,
        )
        data = await asyncio.to_thread(encode_entry, [], layout, metadata)
        while not await store.create(name, memoryview(data)):
            try:
                content = await store.read(name)
            except FileNotFoundError:  # another broker that ends this change replaces it
                continue
            there = await asyncio.to_thread(_values, content, name)
            if there.equals(layout.values.remove_metadata(), check_metadata=True):
                return
            await store.delete(name)


def _values(file: bytes, name: str) -> pa.Schema:
    """Returns the user's columns of a marker. Raises ChainDamaged."""
    parquet, _ = open_entry(io.BytesIO(file), name)
    with parquet:
        return pa.schema([field for field in parquet.schema_arrow if not field.name.startswith("_")])


def _encode(rows: Sequence[tuple[int, pa.RecordBatch]], layout: Layout, metadata: EntryMetadata) -> pa.Buffer:
    return encode_entry(rows, layout, msgspec.structs.replace(metadata, oldest_upload=oldest_upload(rows)))
