"""Creating, changing and deleting topics: the order of writes, and what a crash between any two of them leaves.

Create: 1. ids are allocated (the counter of the name rises, for good). 2. The first segment gets its zero-row entry, so
that an empty topic reads as an empty table. 3. The segments' records, under a prefix of this incarnation, in as many
transactions as they need. 4. The topic's record. Only the last one makes the topic: a crash before it, or a lost race,
leaves files and records of dead ids, which the sweep at the next start removes; a repeated creation takes new ids.

Delete: 1. The record says `deleting`: nothing is taken or read any more, PUT answers 409. 2. Segments are closed. 3.
Files go. 4. Records of segments, subscriptions, cursors. 5. The topic's record. A crash leaves `deleting`, and the next
start goes on at 2. The counter stays, so ids are never used again, and journal frames of dead ids mean nothing to a
recovery.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from seaweedq.broker.catalog import Catalog, Topic, layout_of
from seaweedq.broker.entries import EntryWriter, Source
from seaweedq.broker.failpoints import reach
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Put
from seaweedq.coordination.records import Counter, SegmentRecord, TopicConfig, TopicRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import CoordinationUnavailable, StoreUnavailable, TopicBeingDeleted
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import segment_folder
from seaweedq.segments.keyrange import tile
from seaweedq.segments.producers import ProducerTable
from seaweedq.storage.interface import ObjectStore

PAGE = 60  # writes a transaction, each with its comparison
DELETIONS = 200


class TopicAdmin:
    """Applies changes of topics to coordination, the store and this broker's catalog."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: ObjectStore,
        entries: EntryWriter,
        clock: Clock,
        patience_s: float,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._entries = entries
        self._clock = clock
        self._patience_s = patience_s  # with a store that refuses a new topic's first entry
        self._creating = asyncio.Lock()

    async def create(self, name: str, config: TopicConfig, owner: str) -> bool:
        """Create a topic whose segments belong to `owner`. False: somebody else was faster. Raises
        TopicBeingDeleted."""
        async with self._creating:
            if await self._look(name):
                self._catalog.topic(name)
                return False
            return await self._create(name, config, owner)

    async def _look(self, name: str) -> bool:
        there = await self._coordination.get(keys.TOPICS.key(name))
        if there:
            self._note(there.key, there.value, there.revision)
        return there is not None

    async def _create(self, name: str, config: TopicConfig, owner: str) -> bool:
        first = await self._allocate(name, config.initial_segments)
        record = TopicRecord(incarnation=first, state="active", config=config, created_us=self._clock.now_us())
        ranges = tile(config.initial_segments)
        source = Source(name, first, ranges[0], layout_of(record))
        chain = Chain(self._store, name, first)
        reach("create.allocated")
        try:
            async with asyncio.timeout(self._patience_s):
                await self._entries.append(source, chain, [], ProducerTable(source.key_range), 0)
        except TimeoutError:
            raise chain.failing or StoreUnavailable(f"no answer to the first entry of {chain.folder}") from None
        segments = [
            (
                keys.SEGMENTS.key(name, first, first + at),
                keys.SEGMENTS.encode(SegmentRecord(r.low, r.high, "open", (), (), owner, None, record.created_us)),
            )
            for at, r in enumerate(ranges)
        ]
        for start in range(0, len(segments), PAGE):
            reach("create.segments")
            await self._put_new(segments[start : start + PAGE])
        reach("create.record")
        if await self._put_new([(keys.TOPICS.key(name), keys.TOPICS.encode(record))], required=False):
            reach("create.made")
            return True
        await self._look(name)
        await self._remove_records(keys.SEGMENTS.prefix(name, first))
        await self._store.delete(chain.folder + str((await chain.names())[0]))
        return False

    async def change(self, topic: Topic, config: TopicConfig) -> bool:
        """Write a new configuration. False: the topic has changed meanwhile."""
        return await self._replace(topic, msgspec.structs.replace(topic.record, config=config))

    async def begin_delete(self, topic: Topic) -> None:
        """Step 1 of deletion."""
        while topic.record.state != "deleting":
            if await self._replace(topic, msgspec.structs.replace(topic.record, state="deleting")):
                return
            await asyncio.sleep(0)

    async def finish_delete(self, topic: Topic) -> None:
        """Steps 3 to 5; nothing of the topic may be open any more. Repeatable."""
        reach("delete.files")
        await self.remove_files(f"topics/{topic.name}/")
        incarnation = topic.record.incarnation
        for kind in (keys.CURSORS, keys.SUBSCRIPTIONS, keys.SEGMENTS):
            reach("delete.records")
            await self._remove_records(kind.prefix(topic.name, incarnation))
        reach("delete.record")
        key = keys.TOPICS.key(topic.name)
        revision = await self._coordination.commit([Compare(key, topic.revision)], [Delete(key)])
        if revision:
            self._catalog.apply([Change(key, None, revision)])

    async def remove_files(self, prefix: str) -> int:
        """Delete everything below a prefix, page by page; how many objects went."""
        removed = 0
        while page := await self._store.list(prefix, limit=DELETIONS):
            for name in page:
                await self._store.delete(name)
                reach("delete.file")
            removed += len(page)
        return removed

    async def sweep(self) -> int:
        """Remove what creations and deletions that were cut off have left: files and segment records of dead ids.

        Only before this broker serves and while no other one lives: a creation under way has dead ids too.
        """
        removed = 0
        entries, _ = await read_all(self._coordination, keys.COUNTERS.prefix())
        for entry in entries:
            (name,) = keys.COUNTERS.parse(entry.key)
            topic = self._catalog.find(name)
            live = self._catalog.segments(topic) if topic else {}
            records, _ = await read_all(self._coordination, keys.SEGMENTS.prefix(name))
            dead = [
                r.key for r in records if topic is None or keys.SEGMENTS.parse(r.key)[1] != topic.record.incarnation
            ]
            await self._delete_keys(dead)
            if keys.COUNTERS.decode(entry.value).next > len(live):
                removed += await self._sweep_files(name, live)
        return removed

    async def _sweep_files(self, name: str, live: dict[int, SegmentRecord]) -> int:
        removed, after = 0, ""
        while page := await self._store.list(f"topics/{name}/", after=after, limit=1):
            folder = page[0].rsplit("/", 1)[0] + "/"
            after = folder + "~"
            if folder not in {segment_folder(name, segment) for segment in live}:
                removed += await self.remove_files(folder)
        return removed

    async def _allocate(self, name: str, count: int) -> int:
        key = keys.COUNTERS.key(name)
        while True:
            there = await self._coordination.get(key)
            first = keys.COUNTERS.decode(there.value).next if there else 0
            compare = Compare(key, there.revision if there else 0)
            if await self._coordination.commit([compare], [Put(key, keys.COUNTERS.encode(Counter(first + count)))]):
                return first

    async def _put_new(self, writes: Sequence[tuple[str, bytes]], required: bool = True) -> bool:
        revision = await self._coordination.commit(
            [Compare(key, 0) for key, _ in writes], [Put(key, value) for key, value in writes]
        )
        if revision is None:
            if required:
                raise CoordinationUnavailable(f"{writes[0][0]} was written by somebody else")
            return False
        for key, value in writes:
            self._note(key, value, revision)
        return True

    async def _replace(self, topic: Topic, record: TopicRecord) -> bool:
        key, value = keys.TOPICS.key(topic.name), keys.TOPICS.encode(record)
        revision = await self._coordination.commit([Compare(key, topic.revision)], [Put(key, value)])
        if revision:
            self._note(key, value, revision)
        elif there := await self._coordination.get(key):
            self._note(key, there.value, there.revision)
        else:
            raise TopicBeingDeleted(f"topic {topic.name!r} was deleted meanwhile", topic=topic.name)
        return revision is not None

    async def _remove_records(self, prefix: str) -> None:
        entries, _ = await read_all(self._coordination, prefix)
        await self._delete_keys([entry.key for entry in entries])

    async def _delete_keys(self, doomed: Sequence[str]) -> None:
        for start in range(0, len(doomed), PAGE):
            page = doomed[start : start + PAGE]
            revision = await self._coordination.commit([], [Delete(key) for key in page])
            if revision:
                self._catalog.apply([Change(key, None, revision) for key in page if key.startswith("segments/")])

    def _note(self, key: str, value: bytes, revision: int) -> None:
        self._catalog.apply([Change(key, value, revision)])
