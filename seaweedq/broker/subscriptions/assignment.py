"""Assignment of a subscription to a dispatcher: the broker that its record names while that one lives, then the
preferred broker.

The preferred broker is the rendezvous winner among living brokers that are not about to leave, so all brokers agree on
it without a message. It takes a subscription over in one transaction, which compares

- the record's revision: of two brokers that try one wins, and a late write of an earlier dispatcher (a checkpoint, a
  release, a take-over) compares a revision that is gone;
- this broker's key: a broker that was declared dead takes nothing over;
- that the last dispatcher's key is gone. A key never comes back, so a paused dispatcher cannot go on either.

If the last dispatcher's lease was ended on suspicion, its mark must be gone: its answers rest on the lease, which it
may believe in for as long as that would have lasted (broker/cluster/revoker).

Before that its journal must be replayed: the journal's key is gone, or says `recovered`, or that nothing of the topic
is `left`. Then all its acks are in the
cursors, which are read after the transaction; the new epoch keeps a replay that runs again from adding anything. A
living dispatcher releases a subscription by itself: all its acks are in the cursors before the record names nobody.

Each take-over raises the epoch by one. The first one in a generation of coordination raises it by GAP: a state that was
brought back (broker/rebuild) may lack take-overs, whose epochs must not come again. It is behind the replay, since acks
are replayed for the epoch that the record has.

A creation and a seek take acks back. Their first transaction also changes the topic's key of rewinds, which retention
compares when it raises a start over messages that all have acked: either the raise is first, and they begin at the
start or above, or they are first, and the raise fails. One transaction has both, so no crash comes between. It compares
the topic's key, too: an accepted loss writes that before it lowers cursors (broker/cluster/accepted_loss).

So does what gives a subscription its topic of dead letters, with the keys of rewinds and the records of both topics: a
change of a schema compares its topic's key of rewinds (broker/topics/schema_versions). Whichever is second fails, and
is checked anew.
"""

import logging
from collections.abc import Callable, Sequence

from seaweedq.balancer.placement import Host, successor_of
from seaweedq.broker.subscriptions.cursor import broken_by_subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.checks import InvariantViolated, reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import RewindRecord, SubscriptionRecord
from seaweedq.coordination.roster import Roster, is_replayed
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner, SubscriptionNotFound

KNOWN = 100_000  # dispatchers that are remembered
GAP = 1_000_000  # epochs: more than a subscription has in a generation

logger = logging.getLogger(__name__)


class Assignment:
    """Finds, takes and releases the records of subscriptions for one broker, which is of a `generation` of
    coordination."""

    def __init__(
        self, coordination: Coordination, roster: Roster, membership: Membership, generation: Callable[[], int]
    ) -> None:
        self._coordination = coordination
        self._generation = generation
        self._roster = roster
        self._membership = membership
        self._known: dict[tuple[Topic, str], str] = {}
        self._leaving = False

    def leave(self) -> None:
        """Takes no subscription over any more."""
        self._leaving = True

    async def dispatcher(self, topic: Topic, name: str) -> str:
        """Returns the broker to ask about a subscription; if it does not exist, the broker that would create it."""
        known = self._known.get((topic, name))
        if known and self._roster.alive(known):
            return known
        there = await self.read(topic, name)
        if there is None:
            return self.preferred(topic, name)
        broker = there.record.dispatcher
        if broker is None or not (self._roster.alive(broker) or not await self._roster.gone(broker)):
            broker = self.preferred(topic, name)
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[topic, name] = broker
        return broker

    def invalidate(self, topic: Topic, name: str) -> None:
        """Forgets the known dispatcher, which does not answer or is another one: the next call looks it up."""
        self._known.pop((topic, name), None)

    def forget(self, topic: Topic) -> None:
        """Forgets the dispatchers of a topic that is gone."""
        for key in [key for key in self._known if key[0] is topic]:
            del self._known[key]

    def preferred(self, topic: Topic, name: str) -> str:
        """Returns the broker that would take the subscription over; this one if all are about to leave."""
        hosts = [Host(b, known.record.zone, not known.record.takes_more) for b, known in self._roster.brokers.items()]
        return successor_of(f"{topic.name}/{topic.record.incarnation}/{name}", hosts) or self._membership.broker

    async def read(self, topic: Topic, name: str) -> Versioned[SubscriptionRecord] | None:
        """Returns the record as it is now. Raises NeedsNewerBroker."""
        there = await self._coordination.get(key_of(topic, name))
        return keys.SUBSCRIPTIONS.require(there) if there else None

    async def acquire(self, topic: Topic, name: str) -> Versioned[SubscriptionRecord]:
        """Makes this broker the dispatcher of an active subscription, in a new epoch. Raises SubscriptionNotFound,
        NotOwner."""
        there = await self.read(topic, name)
        if there is None or there.record.state != "active":
            if there and there.record.dispatcher != self._membership.broker:
                await self.free(topic, there.record)
            raise SubscriptionNotFound(
                f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
            )
        generation = self._generation()
        step = GAP if there.record.generation < generation else 1
        taken = there.replace(epoch=there.record.epoch + step, generation=max(generation, there.record.generation))
        return await self.claim(topic, name, taken, there)

    async def claim(
        self,
        topic: Topic,
        name: str,
        wanted: Versioned[SubscriptionRecord],
        before: Versioned[SubscriptionRecord] | None = None,
        rewinds: Compare | None = None,
    ) -> Versioned[SubscriptionRecord]:
        """Writes a record that names this broker in place of the one before. A creation and a seek give the topic's
        comparison from before they asked for offsets, as `rewinds`. Raises NotOwner if one of the two has changed,
        NeedsNewerBroker, and InvariantViolated if the epoch would fall."""
        if before and (found := broken_by_subscription(before.record, wanted.record)):
            logger.error(
                "refusing to change %s, because an invariant would be broken: %s; before: %s; after: %s",
                key_of(topic, name),
                found,
                before,
                wanted,
            )
            raise InvariantViolated(f"the change to subscription {name!r} was refused: {found[0]}")
        compares = await self.free(topic, before.record if before else None)
        mine = wanted.replace(dispatcher=self._membership.broker)
        compares += [Compare(key_of(topic, name), wanted.revision), *([rewinds] if rewinds else [])]
        return await self.write(topic, name, mine, compares, await self.rewind(topic, name) if rewinds else [])

    async def seize(
        self, topic: Topic, name: str, wanted: Versioned[SubscriptionRecord], as_leader: Compare
    ) -> Versioned[SubscriptionRecord]:
        """Writes a record that names this broker, which leads, from any dispatcher. Raises NotOwner if the record has
        changed."""
        mine = wanted.replace(dispatcher=self._membership.broker)
        unchanged = Compare(key_of(topic, name), wanted.revision)
        return await self.write(topic, name, mine, [unchanged, self._membership.compare(), as_leader])

    async def release(self, topic: Topic, name: str, held: Versioned[SubscriptionRecord]) -> None:
        """Removes the dispatcher from the record, after all acks are in the cursors. Raises CoordinationUnavailable:
        the outcome is unknown."""
        put = Put(key_of(topic, name), keys.SUBSCRIPTIONS.encode(held.replace(dispatcher=None)))
        reach("dispatch.release")
        await self._coordination.commit([Compare(put.key, held.revision)], [put])
        self.invalidate(topic, name)

    async def write(
        self,
        topic: Topic,
        name: str,
        wanted: Versioned[SubscriptionRecord],
        compares: Sequence[Compare],
        others: Sequence[Put] = (),
    ) -> Versioned[SubscriptionRecord]:
        """Writes the record, and others with it, if all comparisons hold. Raises NotOwner."""
        put = Put(key_of(topic, name), keys.SUBSCRIPTIONS.encode(wanted))
        revision = await self._coordination.commit(compares, [put, *others])
        if revision is None:
            raise changed_meanwhile(topic, name)
        return wanted.stored(revision)

    async def rewind(self, topic: Topic, name: str) -> list[Put]:
        """Returns the change of a topic's key of rewinds. It compares nothing, so that subscriptions do not wait for
        each other: any write is a new revision. Raises NeedsNewerBroker."""
        key, record = keys.REWINDS.key(topic.name, topic.record.incarnation), RewindRecord(name)
        there = await self._coordination.get(key)
        held = keys.REWINDS.require(there).with_record(record) if there else Versioned.new(record)
        return [Put(key, keys.REWINDS.encode(held))]

    async def free(self, topic: Topic, record: SubscriptionRecord | None) -> list[Compare]:
        """Returns the comparisons under which this broker may dispatch after the one that `record` names. Raises
        NotOwner if it may not yet."""
        mine = self._membership.broker
        before = record.dispatcher if record else None
        if before == mine:
            return [self._membership.compare()]
        if self._leaving:
            raise NotOwner(f"broker {mine} is stopping, and no longer delivers the messages of subscriptions")
        if before is None:
            return [self._membership.compare()]
        if self._roster.alive(before) or not await self._roster.gone(before):
            raise NotOwner(f"broker {before} delivers the messages of the subscription", owner=before)
        journal = await self._coordination.get(keys.JOURNALS.key(before))
        if journal and not is_replayed(keys.JOURNALS.read(journal), topic.name):
            raise NotOwner(
                f"broker {before} delivered the subscription's messages before, and the journal of that broker has not "
                "been recovered yet"
            )
        if await self._coordination.get(keys.REVOCATIONS.key(before)):  # none is put once that broker's key has gone
            raise NotOwner(
                f"broker {before} delivered the subscription's messages before; the lease of that broker was revoked, "
                "and that broker may not know this yet"
            )
        return [self._membership.compare(), Compare(keys.BROKERS.key(before), 0)]


def key_of(topic: Topic, name: str) -> str:
    """Returns the key of the subscription's record."""
    return keys.SUBSCRIPTIONS.key(topic.name, topic.record.incarnation, name)


def topic_compare(topic: Topic) -> Compare:
    """Returns a comparison that holds until the topic's record is written again."""
    return Compare(keys.TOPICS.key(topic.name), topic.revision)


def changed_meanwhile(topic: Topic, name: str) -> NotOwner:
    """Returns the error of a write that another one was faster than."""
    return NotOwner(f"subscription {name!r} of topic {topic.name!r} was changed by another request; try again")
