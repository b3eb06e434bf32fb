"""Creating, changing and deleting topics: the order of writes, and what a crash between any two of them leaves.

Create: 1. ids are allocated (the counter of the name rises, for good), and a key tied to this broker's lease says that
they are in use. 2. The first segment gets its zero-row entry, so that an empty topic reads as an empty table. It has
the topic's record: what others publish there before 5 needs no backup of coordination. 3. The segments' records, under
a prefix of this incarnation, in as many transactions as they need. 4. The topic's record, in one transaction with the
end of that key. Only this one makes the topic: a crash before it, or a lost race, leaves files and records of dead ids,
which the leader's sweep removes; a repeated creation takes new ids. 5. The store has the change
(broker/admin_changes), as behind each change of a configuration; a crash before it leaves a topic whose creation was
not answered.

Delete: 1. The record says `deleting`: nothing is taken or read any more, PUT answers 409. 2. The store has that change.
3. All owners close the topic's segments. 4. Files of its segments go. 5. Records of segments, subscriptions, cursors.
6. The topic's record. A crash leaves `deleting`, and the leader goes on at 2. The counter stays, so ids are never used
again, and journal frames of dead ids mean nothing to a recovery. Two brokers may delete at once: nothing that is
removed can be another topic's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.log.entry_writer import EntryWriter, Source
from seaweedq.broker.topics.catalog import Catalog, Topic, layout_of
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.invariants import broken_in_topic
from seaweedq.checks import InvariantViolated, reach
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Put, read_all
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import Counter, CreationRecord, SegmentRecord, TopicConfig, TopicRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import CoordinationUnavailable, NotReady, SeaweedqError, StoreUnavailable, TopicBeingDeleted
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import MARKERS, EntryName, segment_folder, segment_in
from seaweedq.segments.keyrange import tile
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.terms import first_term
from seaweedq.storage.interface import ObjectStore, folders

GIVE_UP_S = 2.0  # for the record of a creation that failed
PAGE = 50  # writes a transaction, each with its comparison, and those of their owners
HOSTS = 20  # other brokers that a new topic's segments are spread over
DELETIONS = 200


class TopicAdmin:
    """Applies changes of topics to coordination, the store and this broker's catalog."""

    def __init__(
        self,
        catalog: Catalog,
        roster: Roster,
        membership: Membership,
        clock: Clock,
        coordination: Coordination,
        store: ObjectStore,
        entries: EntryWriter,
        patience_s: float,
        quota: ClusterQuota,
        check_generation: Callable[[], Awaitable[None]],
        changes: AdminChanges,
    ) -> None:
        self._quota = quota
        self._changes = changes
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._entries = entries
        self._clock = clock
        self._membership = membership
        self._roster = roster
        self._patience_s = patience_s  # with a store that refuses a new topic's first entry
        self._check_generation = check_generation  # before files go
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by name, while one is created

    async def create(self, name: str, config: TopicConfig, creator: str | None = None) -> bool:
        """Creates a topic, with its segments spread over the living brokers, for the principal with the uid `creator`.
        False: another creation was first. Raises TopicBeingDeleted, TooManyTopics, TooManySegments, StoreUnavailable;
        the topic may be there then."""
        async with self._creating.setdefault(name, asyncio.Lock()):
            if await self._refresh(name):
                self._catalog.topic(name)
                return False
            return await self._create(name, config, UNSET if creator is None else creator)

    async def _refresh(self, name: str) -> bool:
        there = await self._coordination.get(keys.TOPICS.key(name))
        if there:
            self._catalog.apply([Change(there.key, there.value, there.revision)])
        return there is not None

    async def _create(self, name: str, config: TopicConfig, creator: str | UnsetType) -> bool:
        first, creation = await self._allocate(name, config.initial_segments, creator)
        record = TopicRecord(first, "active", config, self._clock.now_us(), creator)
        try:
            return await self._make(name, record, creation)
        except (SeaweedqError, asyncio.CancelledError):  # a publish that creates it has a deadline
            with suppress(CoordinationUnavailable, TimeoutError):  # then it goes with our lease
                async with asyncio.timeout(GIVE_UP_S):
                    await self._coordination.commit([], [Delete(creation.key)])
            raise

    async def _make(self, name: str, record: TopicRecord, creation: Compare) -> bool:
        first, ranges = record.incarnation, tile(record.config.initial_segments)
        mine, term = self._membership.broker, first_term(self._catalog.generation)  # the first one is mine
        source = Source(name, first, ranges[0], layout_of(record), owner=mine, term=term)
        chain = Chain(self._store, name, first)
        key, value = keys.TOPICS.key(name), keys.TOPICS.encode(Versioned.new(record))
        reach("create.allocated")
        try:
            async with asyncio.timeout(self._patience_s):
                tables = ProducerTables.empty(first, source.key_range)
                await self._entries.append(source, chain, [], tables, 0, topic_record=msgspec.json.decode(value))
        except TimeoutError:
            raise chain.failing or StoreUnavailable(
                f"the store did not confirm in time that it stored the first file in {chain.folder}"
            ) from None
        others = sorted(b for b, known in self._roster.brokers.items() if b != mine and known.record.takes_more)
        hosts = [mine, *others[:HOSTS]]
        segments = [
            SegmentRecord(r.low, r.high, "open", (), (), hosts[at % len(hosts)], None, record.created_us, term=term)
            for at, r in enumerate(ranges)
        ]
        if found := broken_in_topic(dict(enumerate(segments, first))):
            raise InvariantViolated(f"topic {name!r} was not created: {found[0]}")
        for start in range(0, len(segments), PAGE):
            reach("create.segments")
            await self._put_segments(name, first, start, segments[start : start + PAGE])
        reach("create.record")
        revision = await self._catalog.commit([Compare(key, 0), creation], [Put(key, value), Delete(creation.key)])
        if revision:
            reach("create.made")
            await self._changes.put_topic(name, Versioned(record, revision))
            return True
        if not await self._refresh(name):
            raise NotReady("this broker's lease has expired")
        await self._remove_records(keys.SEGMENTS.prefix(name, first))
        await self._store.delete(chain.folder + str((await chain.names())[0]))
        await self._coordination.commit([], [Delete(creation.key)])
        return False

    async def change(self, topic: Topic, config: TopicConfig) -> bool:
        """Writes a new configuration. False: the topic was changed concurrently. Raises StoreUnavailable; it may be
        written then."""
        held = topic.held.replace(config=config)
        revision = await self._replace(topic, held)
        if revision:
            await self._changes.put_topic(topic.name, held.stored(revision))
        return revision is not None

    async def ensure(self, topic: Topic) -> None:
        """Has the store know a topic as it is, for the answer to a repeat. Raises StoreUnavailable."""
        await self._changes.put_topic(topic.name, topic.held)

    async def begin_delete(self, topic: Topic) -> None:
        """Does steps 1 and 2 of deletion. Raises StoreUnavailable."""
        while topic.record.state != "deleting" and self._catalog.get(topic.name) is topic:
            await self._replace(topic, topic.held.replace(state="deleting"))
        if topic.record.state == "deleting":  # else another broker has ended a deletion
            await self._changes.put(topic.revision, [Put(keys.TOPICS.key(topic.name), keys.TOPICS.encode(topic.held))])

    async def finish_delete(self, topic: Topic) -> None:
        """Does steps 4 to 6; nothing of the topic may be open any more. Repeatable."""
        reach("delete.files")
        incarnation = topic.record.incarnation
        entries, _ = await read_all(self._coordination, keys.SEGMENTS.prefix(topic.name, incarnation))
        for entry in entries:
            await self.remove_files(segment_folder(topic.name, keys.SEGMENTS.parse(entry.key)[2]))
        await self._remove_markers(topic.name, lambda dead: dead == incarnation)
        for kind in (keys.CURSORS, keys.SUBSCRIPTIONS, keys.STARTS, keys.TOMBSTONES, keys.SCHEMAS, keys.SEGMENTS):
            reach("delete.records")
            await self._remove_records(kind.prefix(topic.name, incarnation))
        reach("delete.record")
        key = keys.TOPICS.key(topic.name)
        rewinds = keys.REWINDS.key(topic.name, incarnation)
        await self._catalog.commit([Compare(key, topic.revision)], [Delete(rewinds), Delete(key)])

    async def remove_files(self, prefix: str) -> int:
        """Deletes everything below a prefix, page by page. Returns the number of objects."""
        removed = 0
        while page := await self._store.list(prefix, limit=DELETIONS):
            for name in page:
                await self._store.delete(name)
                reach("delete.file")
            removed += len(page)
        return removed

    async def _remove_markers(self, topic: str, is_dead: Callable[[int], bool]) -> int:
        """Deletes the markers of a topic's schema that are of dead incarnations. Returns their number."""
        folder, removed = segment_folder(topic, MARKERS), 0
        after = ""
        while names := await self._store.list(folder, after, DELETIONS):
            for name in names:
                marker = EntryName.from_object(name, folder)
                if marker and is_dead(marker.first_offset):
                    await self._store.delete(name)
                    reach("delete.file")
                    removed += 1
            after = names[-1]
        return removed

    async def sweep(self, only: Collection[str] | None = None) -> int:
        """Removes the leftovers of interrupted creations and deletions: files and segment records of dead ids, of all
        names or of `only` some. It goes by what is there: a rebuild leaves a million ids that nothing ever had.

        An id is dead if it is below its counter, no creation has it, and the topic neither has it nor has promised it
        to a successor; read in that order: an intent is written in the transaction that takes its ids. Nothing is known
        to be dead if the record of the counter, the topic or one of its segments cannot be read.
        """
        removed, checked = 0, False
        entries, _ = await read_all(self._coordination, keys.COUNTERS.prefix())
        under_way, _ = await read_all(self._coordination, keys.CREATIONS.prefix())
        busy = {keys.CREATIONS.parse(entry.key)[0] for entry in under_way}
        await self._catalog.load()
        for entry in entries:
            (name,) = keys.COUNTERS.parse(entry.key)
            counter = keys.COUNTERS.read(entry)
            if only is not None and name not in only:
                continue
            if name in busy or isinstance(counter, Unreadable) or not self._catalog.is_readable(name):
                continue
            topic, below = self._catalog.get(name), counter.record.next
            records, _ = await read_all(self._coordination, keys.SEGMENTS.prefix(name))
            live = live_ids(self._catalog.segments(topic) if topic else {})
            if below > len(live) and not checked:
                await self._check_generation()
                checked = True
            ids = {record.key: keys.SEGMENTS.parse(record.key)[2] for record in records}
            await self._delete_keys([key for key, number in ids.items() if number < below and number not in live])
            if below > len(live):
                alive = topic.record.incarnation if topic else None
                removed += await self._remove_markers(name, partial(_is_dead, below, alive))
                async for folder in folders(self._store, f"topics/{name}/"):
                    number = segment_in(folder)
                    if number is not None and number < below and number not in live:
                        removed += await self.remove_files(folder)
        return removed

    async def _allocate(self, name: str, count: int, creator: str | UnsetType) -> tuple[int, Compare]:
        """Allocates `count` ids for a creator. Returns the first, and a comparison that holds while the sweep must not
        treat them as abandoned."""
        key = keys.COUNTERS.key(name)
        while True:
            reserved = await self._quota.reserve(1, count, creator)
            there = await self._coordination.get(key)
            counter = keys.COUNTERS.require(there) if there else Versioned.new(Counter(0))
            first = counter.record.next
            compares = [Compare(key, counter.revision), self._membership.compare(), *reserved.compares]
            creation = keys.CREATIONS.key(name, first)
            value = keys.CREATIONS.encode(Versioned.new(CreationRecord(self._membership.broker, count, creator)))
            writes = [
                Put(key, keys.COUNTERS.encode(counter.replace(next=first + count))),
                Put(creation, value, self._membership.lease),
                *reserved.writes,
            ]
            if revision := await self._coordination.commit(compares, writes):
                return first, Compare(creation, revision)
            if not self._membership.valid():
                raise NotReady("this broker's lease has expired")

    async def _put_segments(self, name: str, first: int, start: int, records: Sequence[SegmentRecord]) -> None:
        """Writes the records of new segments, which name living brokers as their owners."""
        writes = [
            Put(keys.SEGMENTS.key(name, first, first + start + at), keys.SEGMENTS.encode(Versioned.new(record)))
            for at, record in enumerate(records)
        ]
        owners = {record.owner for record in records if record.owner and record.owner != self._membership.broker}
        compares = [self._membership.compare(), *map(self._roster.compare, sorted(owners))]
        revision = await self._catalog.commit([*(Compare(put.key, 0) for put in writes), *compares], writes)
        if revision is None:
            await self._roster.load()
            raise CoordinationUnavailable(f"brokers joined or left while topic {name!r} was being created; try again")

    async def _replace(self, topic: Topic, held: Versioned[TopicRecord]) -> int | None:
        key, value = keys.TOPICS.key(topic.name), keys.TOPICS.encode(held)
        revision = await self._catalog.commit([Compare(key, held.revision)], [Put(key, value)])
        if revision is None and not await self._refresh(topic.name):
            raise TopicBeingDeleted(f"topic {topic.name!r} was deleted while the request was running", topic=topic.name)
        return revision

    async def _remove_records(self, prefix: str) -> None:
        entries, _ = await read_all(self._coordination, prefix)
        await self._delete_keys([entry.key for entry in entries])

    async def _delete_keys(self, doomed: Sequence[str]) -> None:
        for start in range(0, len(doomed), PAGE):
            page = doomed[start : start + PAGE]
            await self._catalog.commit([], [Delete(key) for key in page])


def _is_dead(below: int, alive: int | None, incarnation: int) -> bool:
    """Tells whether no topic has an incarnation, of those that were given out `below` a number, any more."""
    return incarnation < below and incarnation != alive


def live_ids(known: Mapping[int, SegmentRecord]) -> set[int]:
    """Returns the ids that a segment has, or will have."""
    promised = {s.id for record in known.values() if record.intent for s in record.intent.successors}
    return promised | known.keys()
