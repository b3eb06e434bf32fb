"""Administrative changes are in the store before they are answered: topics, subscriptions, seeks, principals, tokens.

Order of writes: 1. the transaction of the change; 2. the watermark rises to its revision (coordination/watermark); 3.
one object, of that revision; 4. the store's newest generation is compared with this life's (broker/backups has 3 and
4); 5. the answer. A crash behind 1, or a store that is away (503),
leaves a change without its object, of which nobody was told. The answer to a repeat ensures the object, too, at
whichever broker it comes: it is that of the revision which the record has by then.

Nobody waits for the object of another change, since each has the whole of its subject as it is now: a topic's record
with its counter, the records of its segments, and the newest two versions of its schema (each version was a change); a
subscription's with its cursors, and with the topic, unless this broker has put that; a token's with its principal. What
is beside the record is read behind the transaction: older values would take back changes of between. Newer ones are no
harm: they are those that a later snapshot has.

What is deleted says so first, in 1: a topic or subscription is `deleting`, a principal loses its uid, a token is over.
Its files, cursors and records go behind 4. So the store has it as deleted before anybody can find that it is not there,
whoever ends the deletion, and a repeat that finds nothing needs no object.
"""

from collections.abc import Sequence

from seaweedq.broker.backups import Backups
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Delete, Put, read_all
from seaweedq.coordination.records import SubscriptionRecord, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.coordination.watermark import raise_watermark

KNOWN = 10_000  # revisions that are remembered


class AdminChanges:
    """Puts the administrative changes that one broker makes, or is asked for again. All of it raises StoreUnavailable,
    CoordinationUnavailable, and Fenced if another generation has begun."""

    def __init__(self, coordination: Coordination, backups: Backups) -> None:
        self._coordination = coordination
        self._backups = backups
        self._known: dict[int, None] = {}  # revisions whose objects were put or found, the newest last

    async def put(self, revision: int, writes: Sequence[Put | Delete], beside: Sequence[Put] = ()) -> None:
        """Puts the object of a revision with its writes, and with values `beside` that belong to its subject, unless it
        is known to be there."""
        if revision in self._known:
            return
        values = [(one.key, one.value if isinstance(one, Put) else None) for one in writes]
        await raise_watermark(self._coordination, revision)
        await self._backups.put_change(revision, values, [(one.key, one.value) for one in beside])
        self._add(revision)

    async def put_topic(self, name: str, held: Versioned[TopicRecord]) -> None:
        """Puts the object of a topic's record, as `held`."""
        if held.revision not in self._known:
            put = Put(keys.TOPICS.key(name), keys.TOPICS.encode(held))
            await self.put(held.revision, [put], await self._of_topic(name, held))

    async def put_subscription(
        self, topic: str, held_topic: Versioned[TopicRecord], name: str, held: Versioned[SubscriptionRecord]
    ) -> None:
        """Puts the object of a subscription's record, as `held`. The topic's record may be behind."""
        if held.revision in self._known:
            return
        place = topic, held_topic.record.incarnation, name
        beside = await self._below(keys.CURSORS.prefix(*place))
        if held_topic.revision not in self._known and (there := await self._coordination.get(keys.TOPICS.key(topic))):
            beside += [Put(there.key, there.value), *await self._of_topic(topic, held_topic)]
        put = Put(keys.SUBSCRIPTIONS.key(*place), keys.SUBSCRIPTIONS.encode(held))
        await self.put(held.revision, [put], beside)
        self._add(held_topic.revision)

    async def _of_topic(self, name: str, held: Versioned[TopicRecord]) -> list[Put]:
        counter = await self._coordination.get(keys.COUNTERS.key(name))
        segments = await self._below(keys.SEGMENTS.prefix(name, held.record.incarnation))
        versions = []
        if held.record.config.schema:
            newest = held.record.config.schema_id
            paths = [keys.SCHEMAS.key(name, held.record.incarnation, n) for n in (newest - 1, newest) if n >= 0]
            versions = [Put(at, there.value) for at in paths if (there := await self._coordination.get(at))]
        return [*([Put(counter.key, counter.value)] if counter else ()), *segments, *versions]

    async def _below(self, prefix: str) -> list[Put]:
        return [Put(one.key, one.value) for one in (await read_all(self._coordination, prefix))[0]]

    def _add(self, revision: int) -> None:
        self._known[revision] = None
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
