"""The loss of a journal that is unknown is accepted: a mirrored one, or a file journal whose folder is gone for ever.
What is left of it is recovered, and no offset that it may have given out is given out again.

The journal's broker may have acknowledged, and delivered, messages that nobody has any more. So each segment that was
its own takes nothing more: it is sealed where its chain ends, and successors go on. Order of writes, each of which can
be repeated:

1. The journal's key says that the loss was accepted (`accept`, at any broker), and the store has that. From here on
   the leader recovers it.
2. What is left is decided, copied and replayed (journal/mirrored_recovery, broker/recovery); nothing is given away.
3. Each open segment of the dead broker gets an intent that is committed: its plan, if there is one, or a roll. Its next
   owner opens it in order to seal it, and accepts nothing (broker/topics/ownership, broker/reshape/reshaper).
4. The records of their topics are written again. A creation and a seek of a subscription compare the revision that
   they knew before they asked for offsets: one that has not written its record by now fails, and asks again.
5. Each subscription of their topics begins a new epoch, in the transaction that lowers its cursors to the ends of the
   chains. Its dispatcher may have delivered more than its cursors say, and finds its epoch gone at the next checkpoint.
6. The journal's key says `recovered`. Only now the segments get owners, and 3. is carried out.

3. begins once the dead broker knows by its own clock that its lease has ended, even if that was revoked: so whoever
reads behind 4. is told nothing by it.

A crash between any two leaves a journal that the next leader recovers again. A late put of the dead broker may still
make a chain longer between 5. and the seal: cursors are below the end then. What a dispatcher had not written when its
epoch ended is delivered again, and so is what it acknowledges until it finds that.
"""

import logging
from typing import NamedTuple

import msgspec

from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.context import ClusterView
from seaweedq.broker.rebuild import lowered
from seaweedq.broker.reshape import intents
from seaweedq.broker.reshape.planning import Planner
from seaweedq.broker.topics.catalog import Topic
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Entry, Put, read_all
from seaweedq.coordination.membership import journals_of
from seaweedq.coordination.packed_forms import pack_plan, unpack_plan
from seaweedq.coordination.records import JournalRecord, MirrorsRecord, SeekRecord, SubscriptionRecord
from seaweedq.coordination.versioned import Unreadable
from seaweedq.errors import JournalConflict, NotReady
from seaweedq.journal.interface import JournalInUse, Journals, JournalUnreachable
from seaweedq.segments.chain import Chain
from seaweedq.storage.interface import ObjectStore

LOSABLE = ("mirrored", "file")  # an object journal is as safe as the store
CURSORS = 50  # in a transaction: two operations each
logger = logging.getLogger(__name__)


class Accepted(NamedTuple):
    """A loss that was accepted: the brokers that were mirrors, and the seconds that may be missing, None if no bound is
    known."""

    mirrors: tuple[str, ...]
    missing_s: float | None


class AcceptedLoss:
    """Accepts the loss of journals, and has the segments of their brokers end."""

    def __init__(
        self,
        view: ClusterView,
        coordination: Coordination,
        store: ObjectStore,
        journals: Journals,
        planner: Planner,
        changes: AdminChanges,
    ) -> None:
        self._journals = journals
        self._changes = changes
        self._catalog = view.catalog
        self._clock = view.clock
        self._coordination = coordination
        self._store = store
        self._planner = planner

    async def accept(self, broker: str) -> Accepted:
        """Accepts the loss of a broker's journal; again, if it was accepted before. Raises JournalConflict if nothing
        is lost of it, or it is of another kind, or its folder is there and in use, NeedsNewerBroker, Unavailable; the
        loss may be accepted then."""
        if await self._coordination.get(keys.BROKERS.key(broker)):
            raise JournalConflict(f"broker {broker} is running, so nothing of its journal is lost", broker=broker)
        while True:
            there = await self._coordination.get(keys.JOURNALS.key(broker))
            if there is None:
                raise JournalConflict(
                    f"broker {broker} has no journal left to recover: either brokers have recovered it, or no broker "
                    "has this id",
                    broker=broker,
                )
            held = keys.JOURNALS.require(there)
            record = held.record
            if record.kind not in LOSABLE:
                raise JournalConflict(
                    f"the journal of broker {broker} is of the kind {record.kind!r}; only the loss of a mirrored "
                    "journal or of a file journal can be accepted",
                    broker=broker,
                )
            if record.loss_accepted_us:
                await self._changes.put(there.revision, [Put(there.key, there.value)])
                break
            if record.recovered:
                raise JournalConflict(
                    f"the journal of broker {broker} has been recovered without a loss, and only its removal is left",
                    broker=broker,
                )
            if record.unknown is None:
                raise JournalConflict(
                    f"the journal of broker {broker} can be reached: the leader is recovering it without a loss",
                    broker=broker,
                )
            if record.path:
                await self._check_free(broker, record)
            accepted = held.replace(loss_accepted_us=max(1, self._clock.now_us()))
            put = Put(there.key, keys.JOURNALS.encode(accepted))
            reach("loss.accept")
            if revision := await self._coordination.commit([Compare(there.key, held.revision)], [put]):
                await self._changes.put(revision, [put])
                logger.warning("an administrator accepted the loss of the journal of broker %s", broker)
                break
        found = await self._coordination.get(keys.MIRRORS.key(broker))
        known = keys.MIRRORS.read(found) if found else None
        mirrors = MirrorsRecord("closed") if known is None or isinstance(known, Unreadable) else known.record
        return Accepted(tuple(one.broker for one in mirrors.members), mirrors.exposure_s)

    async def _check_free(self, broker: str, record: JournalRecord) -> None:
        """Checks that no process has the folder of a file journal, as far as coordination and this machine know.
        Raises JournalConflict, Unavailable."""
        there = f"the data folder {record.path} of broker {broker} is not lost: "
        for other in await journals_of(self._coordination, record.place):
            if await self._coordination.get(keys.BROKERS.key(other)):
                raise JournalConflict(
                    f"{there}broker {other} is running in that folder, and is recovering the journal. If broker "
                    f"{other} cannot recover the journal (see that broker's log), stop that broker, and then accept "
                    "the loss",
                    broker=broker,
                )
        dead = self._journals.open_dead(broker, record)
        try:
            await dead.fence()
        except JournalInUse as error:
            raise JournalConflict(
                f"{there}{error}. Stop that process; then a broker that you start in that folder recovers the journal",
                broker=broker,
            ) from error
        except JournalUnreachable:
            pass
        finally:
            await dead.close()

    async def end_segments(self, broker: str) -> None:
        """Has the open segments of a dead broker end where their chains do, and lowers cursors that stand above. All
        of its journal that is left must be in the chains. Raises NeedsNewerBroker, SegmentConflict, TooManySegments,
        TopicBeingDeleted, Unavailable, Damaged."""
        if await self._coordination.get(keys.REVOCATIONS.key(broker)):
            raise NotReady(f"the lease of broker {broker} was revoked, and that broker may not know this yet")
        await self._catalog.load()
        dead = Compare(keys.BROKERS.key(broker), 0)
        ended: dict[Topic, list[int]] = {}
        for name, incarnation, number in sorted(self._catalog.owned_by(broker)):
            topic = self._catalog.get(name)
            self._catalog.check_readable(name)
            if topic is None or topic.record.incarnation != incarnation or topic.record.state == "deleting":
                continue
            if await self._end(topic, number, broker, dead):
                ended.setdefault(topic, []).append(number)
        reach("loss.ended")
        for topic, numbers in ended.items():
            await self._renew(topic)
            ends = {number: await self._end_of(topic, number) for number in numbers}
            prefix = keys.SUBSCRIPTIONS.prefix(topic.name, topic.record.incarnation)
            for entry in (await read_all(self._coordination, prefix))[0]:
                await self._lower(topic, entry, ends)
        reach("loss.lowered")
        if ended:
            segments = sum(map(len, ended.values()))
            logger.warning(
                "because of the accepted loss, %d segments of broker %s were cut off after the last message in their "
                "files; new segments replace these segments",
                segments,
                broker,
            )

    async def _end(self, topic: Topic, number: int, broker: str, dead: Compare) -> bool:
        """Makes sure that a segment has a committed intent. Returns False if it is another broker's by now: then
        another recovery has found all of the journal."""
        while True:
            record = self._catalog.segment(topic, number).record
            if record.owner != broker:
                return False
            if record.intent and record.intent.state == "committed":
                return True
            intent = record.intent or await self._planner.plan(topic, [number], compares=[dead])
            reach("loss.planned")
            records = self._catalog.records(topic)
            if intents.locks(records, intent):
                compares, writes = intents.commit(topic, records, intent)
                if await self._catalog.commit([*compares, dead], writes):
                    return True
            await self._catalog.reload_segments(topic)

    async def _renew(self, topic: Topic) -> None:
        """Writes a topic's record again. Raises TopicBeingDeleted, NeedsNewerBroker."""
        while True:
            self._catalog.check(topic)
            key, held = keys.TOPICS.key(topic.name), topic.held
            reach("loss.renew")
            if await self._catalog.commit([Compare(key, held.revision)], [Put(key, keys.TOPICS.encode(held))]):
                return
            await self._catalog.refresh(topic.name)

    async def _end_of(self, topic: Topic, number: int) -> int:
        chain = Chain(self._store, topic.name, number)
        chain.raise_start(self._catalog.start(topic, number))
        await chain.open()
        return chain.end

    async def _lower(self, topic: Topic, entry: Entry | None, ends: dict[int, int]) -> None:
        """Begins a new epoch of a subscription, with its cursors at these ends at most."""
        while entry is not None:
            held = keys.SUBSCRIPTIONS.require(entry)
            if held.record.state == "deleting":
                return
            name = keys.SUBSCRIPTIONS.parse(entry.key)[2]
            writes: list[tuple[Compare, Put]] = []
            for number, end in ends.items():
                key = keys.CURSORS.key(topic.name, topic.record.incarnation, name, number)
                there = await self._coordination.get(key)
                cursor = keys.CURSORS.require(there) if there else None
                if cursor and (lower := lowered(cursor.record, end)) != cursor.record:
                    put = Put(key, keys.CURSORS.encode(cursor.with_record(lower)))
                    writes.append((Compare(key, cursor.revision), put))
            begun = held.with_record(_with_epoch(held.record, ends))
            reach("loss.lower")
            page = writes[:CURSORS]
            revision = await self._coordination.commit(
                [Compare(entry.key, held.revision), *(compare for compare, _ in page)],
                [Put(entry.key, keys.SUBSCRIPTIONS.encode(begun)), *(put for _, put in page)],
            )
            if revision and len(writes) <= CURSORS:
                return
            entry = await self._coordination.get(entry.key)


def _with_epoch(record: SubscriptionRecord, ends: dict[int, int]) -> SubscriptionRecord:
    """Returns the record in a new epoch. A seek that was cut off goes to these ends at most, too."""
    seek: SeekRecord | None = record.seek
    if seek and seek.plan is not None:
        plan = [
            one._replace(end=min(one.end, end), to=None if one.to is None else min(one.to, end))
            if (end := ends.get(one.segment)) is not None
            else one
            for one in unpack_plan(seek.plan)
        ]
        seek = msgspec.structs.replace(seek, plan=pack_plan(plan))
    return msgspec.structs.replace(record, epoch=record.epoch + 1, seek=seek)
