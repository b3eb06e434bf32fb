"""Removal of sealed segments: their records go, once retention has taken all their files; a tombstone stays.

States of a sealed segment: sealed → *emptied* (its start is behind its last entry) → *removed* (a tombstone, and no
record) → gone. A segment goes after its predecessors: a reader that meets a removed one knows that all before it is
removed, so that no order of keys depends on a record that is not there.

Order of writes: 1. the start is raised behind the last entry (broker/retention/retention): from here on readers at the
end go on with the successors, and those below are told; 2. the grace passes, in which dispatchers and readers hear of
it; 3. the files are deleted, and the start's record forgets the raise; payloads that only those files have named are
deleted, and it notes that, too; 4. in one transaction, in a round: the tombstone is put, and the records of the segment
and of its start go; it compares the leader's key, the topic, both records, and that no predecessor has one; 5. the
segment's cursors go. A crash behind 3 leaves an emptied segment, and the next round goes on; one behind 4 leaves
cursors, which nobody reads, and the next sweep removes them, like those that a recovery or a late checkpoint puts.

A tombstone goes by the store's clock, in a round, KEPT_US after the removal, but not as long as an open segment
descends from it within GENERATIONS: a reader may stand there yet. A file that is put late in a removed segment's folder
goes with the sweep of dead ids (broker/topics/topic_admin), since no record has its id.
"""

import logging
from collections.abc import Collection, Iterator, Mapping

from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.segment_index import Records
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put, read_all
from seaweedq.coordination.records import SegmentRecord, TombstoneRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner

KEPT_US = 30 * 86_400 * 1_000_000
GENERATIONS = 10
PAGE = 60  # keys that a transaction deletes
logger = logging.getLogger(__name__)


class SegmentRemoval:
    """Removes emptied segments, for the leader. `removed` counts them."""

    def __init__(
        self, catalog: Catalog, coordination: Coordination, rounds: Rounds, files: TopicFiles, clock: Clock
    ) -> None:
        self.removed = 0
        self._catalog = catalog
        self._coordination = coordination
        self._rounds = rounds
        self._files = files
        self._clock = clock

    def due(self, topic: Topic) -> list[int]:
        """Returns the segments that may go now. Asks nobody."""
        starts = self._catalog.starts.known(topic.name, topic.record.incarnation)
        records, unreadable = self._catalog.records(topic), self._catalog.unreadable_of(topic)
        known = [(n, held.record) for n, held in sorted(starts.items()) if n in records]
        emptied = [n for n, one in known if one.emptied and not one.raised and one.looked >= one.deleted]
        there = records.keys() | unreadable.keys()
        return [n for n in emptied if there.isdisjoint(records[n].record.predecessors)]

    async def remove(self, topic: Topic, now_us: int) -> None:
        """Removes the segments that may go, and then their successors that may, in a round that began at that time of
        the store. Raises NotOwner if something has changed meanwhile, Unavailable, Fenced."""
        gone: set[int] = set()
        while due := self.due(topic):
            for number in due:
                await self._remove(topic, number, now_us)
                gone.add(number)
        await self._remove_cursors(topic, gone)

    async def sweep(self) -> None:
        """Removes the cursors of removed segments, and tombstones whose time is over. Raises Unavailable, Fenced."""
        tombstones = {topic: await self._catalog.tombstones(topic) for topic in await self._topics()}
        for topic, found in tombstones.items():
            await self._remove_cursors(topic, found.keys())
        doomed = {topic: self._over(topic, found, self._clock.now_us()) for topic, found in tombstones.items()}
        if not any(doomed.values()) or (now_us := await self._rounds.begin()) is None:
            return
        for topic, found in tombstones.items():
            await self._delete(
                keys.TOMBSTONES.key(topic.name, topic.record.incarnation, number)
                for number in self._over(topic, found, now_us)
            )

    async def _remove(self, topic: Topic, number: int, now_us: int) -> None:
        place = (topic.name, topic.record.incarnation, number)
        segment, start = self._catalog.segment(topic, number), self._catalog.starts.held(*place)
        await self._files.delete_before(topic, number, start.record.sequence, self._rounds.leader_compare)
        tombstone = _tombstone(segment.record, now_us)
        key, its_start = keys.SEGMENTS.key(*place), keys.STARTS.key(*place)
        before = [keys.SEGMENTS.key(topic.name, topic.record.incarnation, one) for one in tombstone.predecessors]
        compares = [
            self._rounds.leader_compare(),
            Compare(keys.TOPICS.key(topic.name), topic.revision),
            Compare(key, segment.revision),
            Compare(its_start, start.revision),
            *(Compare(one, 0) for one in before),
        ]
        put = Put(keys.TOMBSTONES.key(*place), keys.TOMBSTONES.encode(Versioned.new(tombstone)))
        reach("retention.bury")
        if not await self._catalog.commit(compares, [put, Delete(key), Delete(its_start)]):
            raise NotOwner(
                f"topic {topic.name!r}, its segment {number}, or the leader changed while retention "
                "was removing the segment"
            )
        reach("retention.buried")
        self.removed += 1
        logger.info(
            "removed segment %d of topic %s, because retention has deleted all messages of the segment",
            number,
            topic.name,
        )

    async def _remove_cursors(self, topic: Topic, segments: Collection[int]) -> None:
        """Removes the cursors of all subscriptions on removed segments."""
        if segments:
            entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation))
            await self._delete(entry.key for entry in entries if keys.CURSORS.parse(entry.key)[3] in segments)

    async def _delete(self, doomed: Iterator[str]) -> None:
        left = list(doomed)
        for at in range(0, len(left), PAGE):
            reach("retention.cursors")
            page = [Delete(key) for key in left[at : at + PAGE]]
            await self._coordination.commit([self._rounds.leader_compare()], page)

    async def _topics(self) -> list[Topic]:
        """Returns the active topics that have tombstones."""
        entries, _ = await read_all(self._coordination, keys.TOMBSTONES.prefix())
        named = dict.fromkeys(keys.TOMBSTONES.parse(entry.key)[:2] for entry in entries)
        found = [(self._catalog.get(name), incarnation) for name, incarnation in named]
        return [t for t, n in found if t and t.record.state == "active" and t.record.incarnation == n]

    def _over(self, topic: Topic, tombstones: Mapping[int, TombstoneRecord], now_us: int) -> list[int]:
        """Returns the segments whose tombstones may go. If a segment's record cannot be read, all stay."""
        if self._catalog.unreadable_of(topic):
            return []
        wanted = near_ancestors(self._catalog.records(topic), tombstones)
        return [n for n, one in tombstones.items() if one.removed_us + KEPT_US <= now_us and n not in wanted]


def near_ancestors(records: Records, tombstones: Mapping[int, TombstoneRecord]) -> set[int]:
    """Returns the segments from which an open one descends within GENERATIONS."""
    found: set[int] = set()
    level = {number for number, known in records.items() if known.record.state == "open"}
    for _ in range(GENERATIONS):
        before = [records[n].record.predecessors for n in level if n in records]
        before += [tombstones[n].predecessors for n in level if n in tombstones]
        level = {n for some in before for n in some} - found
        found |= level
    return found


def _tombstone(record: SegmentRecord, now_us: int) -> TombstoneRecord:
    return TombstoneRecord(
        low=record.low,
        high=record.high,
        end_offset=record.end_offset or 0,
        predecessors=record.predecessors,
        successors=record.successors,
        created_us=record.created_us,
        sealed_us=record.sealed_us or 0,
        removed_us=now_us,
    )
