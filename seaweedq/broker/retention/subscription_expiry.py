"""Expiry of subscriptions: one that nobody has pulled from, acked or changed for its `expires_after_s` is deleted.

A dispatcher keeps the time of the last use in memory, and writes into the record that there was one: at the first use
after it took over or after a long rest, before it answers; and at a checkpoint, once a quarter of the time
(RECORD_USE_S at most) has passed since the write before. So uses cost no writes. As long as something is leased,
somebody uses the subscription.

The leader reads all records now and then. *No clock may delete*, and *no restore*: it deletes in a round alone
(broker/retention/rounds), by the store's time; and only records that it has itself seen unchanged, by its monotonic
clock, for as long as a dispatcher of any clock would take to record a use (WATCHED_S at most). The deletion compares
the record: so either that write comes first, or the next use finds the subscription gone.

Order of writes: 1. the record says `deleting`, of the leader; 2. the cursors go; 3. the record goes. A crash behind 1
leaves a record that counts as absent, and goes with the next creation of that name
(broker/subscriptions/admin).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.open_subscriptions import WATCHED_S
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.coordination.records import SubscriptionRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import NotOwner

MARGIN_S = 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record's revision, and the monotonic time at which the leader saw it first."""

    revision: int
    since_s: float


class SubscriptionExpiry:
    """Deletes subscriptions that have expired, for the leader. The record of a use may come `checkpoint_s` late."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        admin: SubscriptionAdmin,
        rounds: Rounds,
        clock: Clock,
        checkpoint_s: float,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._admin = admin
        self._rounds = rounds
        self._clock = clock
        self._late_s = MARGIN_S + 4 * checkpoint_s
        self._seen: dict[str, _Seen] = {}

    async def delete_expired(self) -> None:
        """Reads all subscriptions once, and deletes those that have expired. Raises Unavailable, Fenced."""
        entries, _ = await read_all(self._coordination, keys.SUBSCRIPTIONS.prefix())
        now_s, before = self._clock.monotonic_s(), self._seen
        self._seen = {}
        resting: list[tuple[str, Versioned[SubscriptionRecord]]] = []
        for entry in entries:
            there = keys.SUBSCRIPTIONS.read(entry)
            if isinstance(there, Unreadable) or there.record.state != "active" or not there.record.expires_after_s:
                continue
            seen = before.get(entry.key)
            if seen is None or seen.revision != entry.revision:
                seen = _Seen(entry.revision, now_s)
            self._seen[entry.key] = seen
            if now_s - seen.since_s >= min(there.record.expires_after_s, WATCHED_S) + self._late_s:
                resting.append((entry.key, there))
        due = list(self._due(resting, self._clock.now_us()))
        if due and (now_us := await self._rounds.begin()) is not None:
            for key, there in self._due(due, now_us):
                await self._delete(key, there)

    def _due(
        self, resting: list[tuple[str, Versioned[SubscriptionRecord]]], now_us: int
    ) -> Iterator[tuple[str, Versioned[SubscriptionRecord]]]:
        for key, there in resting:
            record = there.record
            left_s = (record.expires_after_s or 0) + self._late_s
            if now_us - max(record.created_us, record.used_us) >= left_s * 1e6:
                yield key, there

    async def _delete(self, key: str, there: Versioned[SubscriptionRecord]) -> None:
        name, incarnation, subscription = keys.SUBSCRIPTIONS.parse(key)
        topic = self._catalog.get(name)
        if topic is None or topic.record.incarnation != incarnation:
            return
        try:
            await self._admin.expire(topic, subscription, there, self._rounds.leader_compare())
        except NotOwner:  # somebody has used or changed it just now
            return
        used_s = (self._clock.now_us() - max(there.record.created_us, there.record.used_us)) / 1e6
        logger.warning(
            "deleting subscription %s of topic %s, because it was not used for %.0f s and has expires_after_s=%g",
            subscription,
            name,
            used_s,
            there.record.expires_after_s,
        )
