"""Bounds the topics and segments of a cluster, of which every broker holds all records.

Far below the bounds this broker's view decides, and creations cost nothing more. Near them (NEAR_TOPICS, NEAR_SEGMENTS:
more than others create while a view is behind) keys are counted, together with the writes that creations under way will
make, in the transaction that promises the new ones: it compares the key `growth`, which each such transaction writes,
so that of two that counted at once one counts again. Nothing else is stored: brokers that do not know these bounds
cannot spoil the count.

A principal's limits of topics and segments are kept in the same way, by the topics whose records name it as their
creator. It keeps its topics and segments if a limit becomes lower. A topic of a principal that was deleted is nobody's.
Of a plan for segments the topics are those that this broker knows: another one may just have been created elsewhere.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from seaweedq.access.limits import Limits
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put, read_all
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import SeaweedqError, TooManySegments, TooManyTopics

NEAR_TOPICS = 2_000
NEAR_SEGMENTS = 20_000
ENDLESS = 2**62
NEAR_OF_ONE = 200  # topics, and segments, of a principal
READS = 16
TRIES = 20  # creations that go on while they are counted are counted twice


class Reservation(NamedTuple):
    """The comparisons and writes by which a transaction that creates keeps the bounds."""

    compares: tuple[Compare, ...] = ()
    writes: tuple[Put, ...] = ()


class Counts(NamedTuple):
    """Topics and segments."""

    topics: int
    segments: int

    def after(self, topics: int, segments: int) -> "Counts":
        """Returns them with some more."""
        return Counts(self.topics + topics, self.segments + segments)

    def within(self, most: "Counts") -> bool:
        """Returns whether both are at most these."""
        return self.topics <= most.topics and self.segments <= most.segments


class Creation(NamedTuple):
    """A creation under way: for whom, and the segments that it has still to write."""

    creator: str | UnsetType
    left: int


class _Bound(NamedTuple):
    """A bound: of the cluster, or of the topics of one creator."""

    most: Counts
    near: Counts
    creator: str | None = None

    def has(self, creator: str | UnsetType) -> bool:
        """Tells whether the topics of that creator count."""
        return self.creator is None or creator == self.creator

    def too_many(self, found: Counts, topics: int) -> SeaweedqError:
        """Returns the error for a creation over the bound."""
        whose, topics_, segments_ = ("the cluster", "max_topics", "max_segments")
        if self.creator is not None:
            whose, topics_, segments_ = ("the principal that created it", "limits.topics", "limits.segments")
        most = self.most
        if topics and found.topics + topics > most.topics:
            detail = f"{whose} has {found.topics} topics, and the limit is {topics_}={most.topics}; delete some first"
            return TooManyTopics(detail, limit=most.topics, setting=topics_)
        detail = (
            f"{whose} has {found.segments} segments, including those being created, and the limit is "
            f"{segments_}={most.segments}; delete topics, or create topics with fewer segments"
        )
        return TooManySegments(detail, limit=most.segments, setting=segments_)


class ClusterQuota:
    """The bounds of a cluster. `limits` returns those of a principal by its uid."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        max_topics: int,
        max_segments: int,
        limits: Callable[[str], Limits | None] = lambda creator: None,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._most = Counts(max_topics, max_segments)
        self._limits = limits

    async def reserve(self, topics: int, segments: int, creator: str | UnsetType = UNSET) -> Reservation:
        """Returns the reservation by which a transaction may create so many for a creator. Raises TooManyTopics,
        TooManySegments; near the bounds also NeedsNewerBroker if nobody here can count."""
        bounds = [one for one in self._bounds(creator) if not self._is_far(one, topics, segments)]
        if not bounds:
            return Reservation()
        for _ in range(TRIES):
            key = keys.GROWTH.key()
            there = await self._coordination.get(key)  # first: each creation meanwhile changes it
            under_way = await self._under_way()
            found = [(one, await self._count(one, under_way, fresh=topics > 0)) for one in bounds]
            over = next((one for one in found if not one[1].after(topics, segments).within(one[0].most)), None)
            if over is None:
                counter = keys.GROWTH.require(there) if there else Versioned.new(Counter(0))
                raised = keys.GROWTH.encode(counter.replace(next=counter.record.next + 1))
                return Reservation((Compare(key, counter.revision),), (Put(key, raised),))
            if await self._under_way() == under_way:
                break
        assert over is not None
        raise over[0].too_many(over[1], topics)

    def _bounds(self, creator: str | UnsetType) -> list[_Bound]:
        bounds = [_Bound(self._most, Counts(NEAR_TOPICS, NEAR_SEGMENTS))]
        limits = None if creator is UNSET else self._limits(creator)
        if limits and creator is not UNSET and (limits.topics is not None or limits.segments is not None):
            most = Counts(*(ENDLESS if one is None else one for one in (limits.topics, limits.segments)))
            bounds.append(_Bound(most, Counts(NEAR_OF_ONE, NEAR_OF_ONE), creator))
        return bounds

    def _is_far(self, bound: _Bound, topics: int, segments: int) -> bool:
        """Returns whether a bound is so far, by this broker's view, that nobody need count."""
        view = Counts(*self._catalog.counts())
        if bound.creator is not None:
            own = self._catalog.created_by(bound.creator)
            view = Counts(len(own), sum(len(self._catalog.records(topic)) for topic in own))
        return view.after(topics, segments).after(*bound.near).within(bound.most)

    async def _under_way(self) -> dict[str, Creation]:
        """Returns each creation under way, by its key."""
        found = {}
        for entry in (await read_all(self._coordination, keys.CREATIONS.prefix()))[0]:
            name, first = keys.CREATIONS.parse(entry.key)
            written = await self._coordination.count(keys.SEGMENTS.prefix(name, first))
            record = keys.CREATIONS.require(entry).record
            found[entry.key] = Creation(record.creator, max(0, record.count - written))
        return found

    async def _count(self, bound: _Bound, under_way: Mapping[str, Creation], fresh: bool) -> Counts:
        """Returns the numbers with those of creations under way, which were read before: never too few, and too many
        only if one of them has gone on since."""
        begun = [one for one in under_way.values() if bound.has(one.creator)]
        if bound.creator is None:
            promised = self._catalog.promised()
            topics = await self._coordination.count(keys.TOPICS.prefix())
            segments = await self._coordination.count(keys.SEGMENTS.prefix())
        else:  # a creation under way whose topic is read here as well counts twice: it has just ended
            own = [(topic.name, topic.record.incarnation) for topic in self._catalog.created_by(bound.creator)]
            if fresh:
                entries, _ = await read_all(self._coordination, keys.TOPICS.prefix())
                records = {keys.TOPICS.parse(entry.key)[0]: keys.TOPICS.require(entry).record for entry in entries}
                own = [(name, one.incarnation) for name, one in records.items() if one.creator == bound.creator]
            promised = sum(self._catalog.promised(*topic) for topic in own)
            prefixes = [keys.SEGMENTS.prefix(*topic) for topic in own]
            topics, segments = len(own), sum(await gather_bounded(READS, self._coordination.count, prefixes))
        return Counts(topics + len(begun), segments + sum(one.left for one in begun) + promised)
