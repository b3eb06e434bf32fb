"""Bounds the topics and segments of a cluster, of which every broker holds all records.

Far below the bounds this broker's view decides, and creations cost nothing more. Near them (NEAR_TOPICS, NEAR_SEGMENTS:
more than others create while a view is behind) keys are counted, together with what creations under way will write, in
the transaction that promises the new ones: it compares the key `growth`, which each such transaction writes, so that of
two that counted at once one counts again. Nothing else is stored: brokers that do not know these bounds cannot spoil
the count.
"""

from collections.abc import Mapping
from typing import NamedTuple

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import Counter
from seaweedq.coordination.transactions import read_all
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import SeaweedqError, TooManySegments, TooManyTopics

NEAR_TOPICS = 2_000
NEAR_SEGMENTS = 20_000
TRIES = 20  # creations that go on while they are counted are counted twice


class Room(NamedTuple):
    """The comparisons and writes by which a transaction that creates keeps the bounds."""

    compares: tuple[Compare, ...] = ()
    writes: tuple[Put, ...] = ()


class Counts(NamedTuple):
    """Topics and segments."""

    topics: int
    segments: int


class ClusterQuota:
    """The bounds of a cluster."""

    def __init__(self, catalog: Catalog, coordination: Coordination, max_topics: int, max_segments: int) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._most = Counts(max_topics, max_segments)

    async def room(self, topics: int, segments: int) -> Room:
        """Returns what lets a transaction create so many. Raises TooManyTopics, TooManySegments; near the bounds also
        NeedsNewerBroker, where nobody here can count."""
        view = Counts(*self._catalog.counts())
        if (
            view.topics + topics + NEAR_TOPICS <= self._most.topics
            and view.segments + segments + NEAR_SEGMENTS <= self._most.segments
        ):
            return Room()
        for _ in range(TRIES):
            key = keys.GROWTH.key()
            there = await self._coordination.get(key)  # first: who creates meanwhile changes it
            under_way = await self._under_way()
            found = await self._count(under_way)
            if found.topics + topics <= self._most.topics and found.segments + segments <= self._most.segments:
                counter = keys.GROWTH.require(there) if there else Versioned.new(Counter(0))
                raised = keys.GROWTH.encode(counter.replace(next=counter.record.next + 1))
                return Room((Compare(key, counter.revision),), (Put(key, raised),))
            if await self._under_way() == under_way:
                break
        raise self._too_many(found, topics)

    async def _under_way(self) -> dict[str, int]:
        """Returns how many segments each creation under way has still to write, by its key."""
        found = {}
        for entry in (await read_all(self._coordination, keys.CREATIONS.prefix()))[0]:
            name, first = keys.CREATIONS.parse(entry.key)
            written = await self._coordination.count(keys.SEGMENTS.prefix(name, first))
            found[entry.key] = max(0, keys.CREATIONS.require(entry).record.count - written)
        return found

    async def _count(self, under_way: Mapping[str, int]) -> Counts:
        """Returns the numbers with those of creations under way, which were read before: never too few, and too many
        only where one of them has gone on since."""
        promised = self._catalog.promised()
        topics = await self._coordination.count(keys.TOPICS.prefix())
        segments = await self._coordination.count(keys.SEGMENTS.prefix())
        return Counts(topics + len(under_way), segments + sum(under_way.values()) + promised)

    def _too_many(self, found: Counts, topics: int) -> SeaweedqError:
        most = self._most
        if topics and found.topics + topics > most.topics:
            detail = f"the cluster has {found.topics} topics and may have max_topics={most.topics}; delete some first"
            return TooManyTopics(detail, limit=most.topics, setting="max_topics")
        detail = (
            f"the cluster has {found.segments} segments, with those that are being made, and may have "
            f"max_segments={most.segments}; delete topics, or create them with fewer segments"
        )
        return TooManySegments(detail, limit=most.segments, setting="max_segments")
