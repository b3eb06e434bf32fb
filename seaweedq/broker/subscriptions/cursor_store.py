"""Cursors in coordination: read at a take-over, written as checkpoints.

A checkpoint compares the subscription's revision, so that only the present dispatcher writes, and the revision of each
cursor, so that a write which arrives late, after its answer was lost, does not overwrite a newer one. Acks pin their
commits until a checkpoint with them is known to be durable. A cursor that would break an invariant is not written: its
acks stay in the journal, all other cursors are written, and the subscription is not handed on.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from seaweedq.broker.subscriptions.assignment import key_of
from seaweedq.broker.subscriptions.invariants import broken_by
from seaweedq.broker.subscriptions.subscription import SegmentCursor, Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Put
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.coordination.versioned import Versioned
from seaweedq.failpoints import reach
from seaweedq.invariants import InvariantViolated

PAGE = 60  # cursors a transaction: a write and a comparison each
EndOf = Callable[[Topic, int], int | None]
logger = logging.getLogger(__name__)


def _unknown(topic: Topic, segment: int) -> None:
    return None


class _Change(NamedTuple):
    """A cursor to write, with the newest commit that its record holds."""

    segment: int
    cursor: SegmentCursor
    record: CursorRecord
    newest: int

    @property
    def wanted(self) -> Versioned[CursorRecord]:
        return self.cursor.held.with_record(self.record)


class CursorStore:
    """Reads and writes the cursors of subscriptions. `end_of` gives the end of a segment that is known to be sealed."""

    def __init__(self, coordination: Coordination, end_of: EndOf = _unknown) -> None:
        self._coordination = coordination
        self._end_of = end_of

    async def read(self, topic: Topic, name: str, epoch: int, now_s: float) -> dict[int, SegmentCursor]:
        """Returns all cursors of a subscription that was taken over in `epoch`, by segment."""
        found = await self._entries(topic, name)
        return {n: SegmentCursor.taken(keys.CURSORS.read(e), epoch, now_s) for n, e in found.items()}

    async def save(self, subscription: Subscription, handover_s: float | None = None) -> bool:
        """Writes the cursors that have changed, and releases the commits that held their acks. Returns False where
        another broker dispatches now.

        With `handover_s` (now, monotonic) the leases are written too. Raises CoordinationUnavailable.
        """
        async with subscription.saving:
            if subscription.closed and handover_s is None:
                return True  # `Dispatcher.hand_over` writes its last checkpoint, with the leases
            while True:
                changed = [
                    _Change(segment, cursor, record, cursor.newest)
                    for segment, cursor in subscription.cursors.items()
                    if (record := cursor.changed(subscription.record.epoch, handover_s))
                ]
                changed = self._checked(subscription, changed, handover_s is not None)
                pages = [changed[start : start + PAGE] for start in range(0, len(changed), PAGE)]
                if not [page for page in pages if not await self._write(subscription, page)]:
                    subscription.forget_done()
                    return True
                there = await self._coordination.get(key_of(subscription.topic, subscription.name))
                if there is None or there.revision != subscription.held.revision:
                    return False
                await self._look(subscription)

    def _checked(self, subscription: Subscription, changed: Sequence[_Change], handing_on: bool) -> list[_Change]:
        """Returns the cursors that may be written, and logs the others. Raises InvariantViolated if all are needed."""
        topic, name, good = subscription.topic, subscription.name, []
        for one in changed:
            found = broken_by(one.cursor.held.record, one.record, self._end_of(topic, one.segment))
            if found:
                logger.error(
                    "the cursor of %s on segment %s of %s is not written: %s; from %s to %s",
                    name,
                    one.segment,
                    topic.name,
                    "; ".join(found),
                    one.cursor.held.record,
                    one.record,
                )
            else:
                good.append(one)
        if handing_on and len(good) < len(changed):
            raise InvariantViolated(f"subscription {name!r} of {topic.name!r} has cursors that may not be written")
        return good

    async def _look(self, subscription: Subscription) -> None:
        """Reads again what the cursors' next checkpoints replace. What their last ones held stays as it is known: those
        may be newer than the answers that were lost."""
        entries = await self._entries(subscription.topic, subscription.name)
        for segment, cursor in subscription.cursors.items():
            there = keys.CURSORS.read(entries[segment]) if segment in entries else Versioned.new(cursor.held.record)
            cursor.held = there.with_record(cursor.held.record)

    async def _entries(self, topic: Topic, name: str) -> dict[int, Entry]:
        entries, _ = await read_all(self._coordination, keys.CURSORS.prefix(topic.name, topic.record.incarnation, name))
        return {int(keys.CURSORS.parse(entry.key)[3]): entry for entry in entries}

    async def _write(self, subscription: Subscription, changed: Sequence[_Change]) -> bool:
        topic, name = subscription.topic, subscription.name
        writes = [
            Put(
                keys.CURSORS.key(topic.name, topic.record.incarnation, name, one.segment),
                keys.CURSORS.encode(one.wanted),
            )
            for one in changed
        ]
        compares = [Compare(put.key, one.wanted.revision) for put, one in zip(writes, changed, strict=True)]
        reach("checkpoint.write")
        revision = await self._coordination.commit(
            [Compare(key_of(topic, name), subscription.held.revision), *compares], writes
        )
        if revision is None:
            return False
        reach("checkpoint.written")
        for one in changed:
            one.cursor.saved(one.wanted.stored(revision), one.newest)
        return True
