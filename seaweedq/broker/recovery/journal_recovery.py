"""Recovery of the journals of dead brokers; their segments may change hands only after it.

Order of writes for a dead broker X, by any broker that reaches its journal: 1. X's journal is fenced; from here X
acknowledges nothing. 2. Its commits are replayed (broker/recovery/replay). A leader that does it itself gives X's
segments to living brokers meanwhile, each once nothing of it remains in the journal (broker/recovery/replay). 3. X's
journal key says `recovered`: now the leader, whoever it is, gives the others away, and dispatchers change hands. 4. The
watermark rises to that (coordination/watermark), which `done` states. 5. The journal's content goes, then its key. A
crash between any two leaves the key, and the next recovery begins again; each step does nothing if it was done before,
and two brokers may do them at once.

A journal that cannot be reached is unknown, never empty: its segments wait. So do those of a damaged one. But while one
broker reads a journal another may finish, and delete the slots that the first one misses then. It has marked the key
before, so a broker that finds damage reads the key: a recovered journal is not damaged. A journal of a later version is
left for a broker that reads it (broker/cluster/leader), and so is one that holds messages or acks of something whose
record this broker cannot read. All else is replayed then, and the key says of which topics something is `left`: what X
had of others changes hands. The journal stays as it is, and is replayed once more when those records can be read.

A journal whose loss was accepted is recovered by the leader alone, which has its segments end before step 3
(`end_segments`, broker/cluster/accepted_loss), and gives none of them away before. Behind step 3 anybody removes it.
The key of a file journal stays as long as its folder is away: it says, if the folder comes back, that its messages are
no longer wanted.

The leader asks another broker for the recovery of a journal that it cannot read itself (broker/cluster/leader). That
recovery is the same as the leader's own, and several at once are safe. The broker that is asked looks itself whether
the journal's broker is gone. A recovery that was begun goes on, whether the leader waits or not.

The key of this broker's own journal is written before there is a journal, and removed at the end. Order of writes at a
stop: 1. The key says `recovered`, once everything is in chains and cursors. 2. The watermark rises. 3. The content
goes. 4. The key goes. A
crash between any two, or a stop that has no time for thousands of deletions, leaves the key, and the next recovery goes
on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeAlias

from seaweedq import levels
from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.context import Context
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import RemainingSegments, Replay
from seaweedq.broker.service import Service, Tasks
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership, end_life, journals_of
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.roster import is_recovered
from seaweedq.coordination.versioned import UNREADABLE_RECORDS, Unreadable, Versioned
from seaweedq.coordination.watermark import raise_watermark
from seaweedq.errors import JournalDamaged, NeedsNewerBroker, NotOwner, NotReady, SeaweedqError, Unavailable
from seaweedq.journal.interface import DeadJournal, Journal, Journals, JournalUnreachable, Seen
from seaweedq.storage.generations import Generations
from seaweedq.traces import Traces

RETIRE_S = 1.0
EndSegments: TypeAlias = Callable[[str], Awaitable[None]]
logger = logging.getLogger(__name__)
REPLAYS = 4  # at a time: they share the memory that recoveries may hold. Journals that wait for it are fenced before
NAMED = 10  # topics in an error
LEFT_S = 5.0  # between two tries of journals that were left
MAX_LEFT = 1000  # topics in the record's member `left`
ANSWER_S = 5.0


class JournalRegistration:
    """The key of one broker's journal, which `record` describes, and the `first_keys` that come with it. It is in the
    store as well if it `is_stored`: else a rebuild of coordination knows nothing of a journal that is not in the store,
    if the broker joined since the newest snapshot."""

    def __init__(
        self,
        coordination: Coordination,
        membership: Membership,
        record: JournalRecord,
        generations: Generations,
        changes: AdminChanges,
        first_keys: Sequence[Put],
        is_stored: bool,
    ) -> None:
        self._coordination = coordination
        self._membership = membership
        self._generations = generations
        self._changes = changes
        self._first_keys = first_keys
        self._is_stored = is_stored
        self._key = keys.JOURNALS.key(membership.broker)
        self._held = Versioned.new(record).replace(lowest=levels.LOWEST, highest=levels.HIGHEST)

    async def register(self) -> None:
        """Writes the key, so that if this broker dies while it starts, its folder's next broker ends its lease. Raises
        NotReady, StoreUnavailable, Fenced."""
        put = Put(self._key, keys.JOURNALS.encode(self._held))
        puts = [put, *self._first_keys]
        revision = await self._coordination.commit([Compare(self._key, 0), self._membership.compare()], puts)
        if not revision:
            raise NotReady("this broker's lease expired while it was starting")
        if self._is_stored:
            await self._changes.put(revision, [put])

    async def retire(self, journal: Journal) -> None:
        """Removes a closed journal of which nothing is needed, and its key, as far as RETIRE_S allows."""
        reach("stop.retire")
        try:
            async with asyncio.timeout(RETIRE_S):
                if not (revision := await self._record_recovered()):
                    return
                reach("stop.remove")
                await journal.remove(await _moment(self._coordination, self._generations, revision))
                reach("stop.removed")
                await self._coordination.commit([], [Delete(self._key)])
        except (TimeoutError, OSError, SeaweedqError) as error:
            logger.info(
                "this broker could not remove its journal, so another broker will recover and remove it: %s",
                str(error) or "it would take too long",
            )

    async def _record_recovered(self) -> int:
        """Writes that nothing in the journal is needed any more. Returns the revision; 0: the record cannot be read by
        now, and its journal is left alone. Raises NotReady."""
        there = await self._coordination.get(self._key)
        held = keys.JOURNALS.read(there) if there else self._held
        if isinstance(held, Unreadable):
            return 0
        put = Put(self._key, keys.JOURNALS.encode(held.replace(recovered=True)))
        if not (revision := await self._coordination.commit([self._membership.compare()], [put])):
            raise NotReady("this broker's lease has expired")  # a recovery may read what is to be removed
        return revision


async def _moment(coordination: Coordination, generations: Generations, revision: int) -> Seen:
    """Returns what a journal states that is done, given the revision in which its key has said so. Coordination knows
    it, from then on."""
    return Seen(generations.mine.number, await raise_watermark(coordination, revision))


class JournalRecovery:
    """Recovers the journals of the dead. `place` is the id of this process's home folder, whose lock it holds."""

    def __init__(
        self,
        coordination: Coordination,
        membership: Membership,
        replay: Replay,
        journals: Journals,
        place: str,
        generations: Generations,
        traces: Traces | None,
    ) -> None:
        self._coordination = coordination
        self._membership = membership
        self._traces = traces
        self._replay = replay
        self._journals = journals
        self._place = place
        self._generations = generations
        self._turns = asyncio.Semaphore(REPLAYS)
        self._causes: dict[str, set[str]] = {}  # by broker: the records that could not be read for its journal
        self._unreached: dict[str, JournalUnreachable] = {}  # by the broker whose journal cannot be reached
        self._left: dict[str, str] = {}  # by broker: why its journal was left
        self._owes = False  # a journal of this folder was not recovered

    def is_of_here(self, journal: Versioned[JournalRecord]) -> bool:
        """Tells whether a journal is of this process's folder: the lock is held, so its process is gone."""
        return journal.record.place == self._place

    async def revoke(self) -> None:
        """Ends the leases of the brokers that lived in this process's folder: its lock is held, so they are dead.

        The segments of a killed broker are then recovered at its restart, without waiting for the end of its lease.
        """
        for broker in await self._own_journals():
            await end_life(self._coordination, broker)

    async def recover_own(self) -> None:
        """Recovers the journals of this process's folder that no other broker can reach while it lives."""
        mine = {b: one for b, one in (await self._own_journals()).items() if self._journals.is_exclusive(one.record)}
        self._owes = not all([await self.recover(broker, journal) for broker, journal in mine.items()])

    async def recover_left_often(self) -> None:
        """Tries the journals of this process's folder again that were not recovered, for ever: nobody else can reach
        them."""
        while True:
            await asyncio.sleep(LEFT_S)
            if self._owes:
                try:
                    await self.recover_own()
                except SeaweedqError as error:
                    logger.warning("the journals in this broker's data folder have not been recovered yet: %s", error)

    async def recover(
        self,
        broker: str,
        journal: Versioned[JournalRecord],
        remaining: RemainingSegments | None = None,
        end_segments: EndSegments | None = None,
    ) -> bool:
        """Recovers the journal of a broker whose lease has ended, and tells meanwhile which segments are `remaining`.
        If its loss was accepted, its segments end before they have other owners.

        Returns False if it cannot be reached from here, or is left for a newer broker, or its loss was accepted and
        this broker does not end segments. Raises Unavailable, Damaged, and as `end_segments`.
        """
        is_given_up = journal.record.loss_accepted_us > 0
        if is_given_up and end_segments is None and not journal.record.recovered:
            return False
        ending = end_segments if is_given_up else None
        if (causes := self._causes.get(broker)) and UNREADABLE_RECORDS.has(causes):
            return False  # nothing has changed since it was left
        dead = self._journals.open_dead(broker, journal.record)
        try:
            await dead.fence()
            if self._unreached.pop(broker, None) and not is_given_up:
                logger.info("the journal of broker %s can be reached again", broker)
            if journal.record.unknown and not is_given_up:  # fencing one that is given up reaches nothing
                journal = await self._record_reached(broker, journal)
            if not journal.record.recovered:
                async with self._turns:
                    work = self._replay_all(broker, journal, dead, None if ending else remaining, ending)
                    await (work if self._traces is None else self._traces.around(work, "recover", broker=broker))
                reach("takeover.recovered")
                journal = await self._record_recovered(broker, journal)
                if journal.record.loss_accepted_us and not is_given_up:
                    return False  # meanwhile: the chains may lack what was read, so the next try sets it aside
            reach("takeover.remove")
            await dead.remove(await _moment(self._coordination, self._generations, journal.revision))
            reach("takeover.removed")
            await self._coordination.commit([], [Delete(keys.JOURNALS.key(broker))])
            self._left.pop(broker, None)
            return True
        except NeedsNewerBroker as error:
            if self._left.get(broker) != error.detail:
                self._left[broker] = error.detail
                logger.error(
                    "some segments stay unavailable, because the journal of broker %s could not be recovered "
                    "completely: %s",
                    broker,
                    error.detail,
                )
            return False
        except JournalUnreachable as error:
            if journal.record.recovered:
                return False
            if broker not in self._unreached:  # it is tried each second or so
                logger.info(
                    "segments stay unavailable, because the journal of broker %s cannot be reached by this broker: %s",
                    broker,
                    error,
                )
            self._unreached[broker] = error
            return False
        except JournalDamaged:
            if not await self._is_finished(broker):
                raise
            logger.info(
                "the journal of broker %s disappeared while it was being read, because another broker has recovered it",
                broker,
            )
            return True
        finally:
            await dead.close()

    def left(self, broker: str) -> str | None:
        """Returns why this broker leaves a journal for a newer one; None if it does not."""
        return self._left.get(broker)

    def unreached(self, broker: str) -> JournalUnreachable | None:
        """Returns why this broker, which has tried, cannot reach a journal; None if it can, or has not tried."""
        return self._unreached.get(broker)

    def forget_except(self, journals: Container[str]) -> None:
        """Forgets journals that are left or out of reach, and not among those that still exist."""
        self._left = {broker: why for broker, why in self._left.items() if broker in journals}
        self._causes = {broker: keys for broker, keys in self._causes.items() if broker in journals}
        for broker in [broker for broker in self._unreached if broker not in journals]:
            del self._unreached[broker]
            logger.info("the journal of broker %s was recovered by another broker", broker)

    async def _is_finished(self, broker: str) -> bool:
        """Returns whether the journal was recovered, by what its key says now; its content may be gone then."""
        there = await self._coordination.get(keys.JOURNALS.key(broker))
        return there is None or is_recovered(there)

    async def _own_journals(self) -> dict[str, Versioned[JournalRecord]]:
        found = await journals_of(self._coordination, self._place)
        return {broker: journal for broker, journal in found.items() if broker != self._membership.broker}

    async def _replay_all(
        self,
        broker: str,
        journal: Versioned[JournalRecord],
        dead: DeadJournal,
        remaining: RemainingSegments | None,
        end_segments: EndSegments | None,
    ) -> None:
        """Replays all. Raises NeedsNewerBroker for topics whose records cannot be read, and records these before."""
        done = await self._replay.replay(broker, dead.commits, remaining)
        if end_segments:
            await end_segments(broker)
        if done.left:
            self._causes[broker] = set().union(*done.left.values())
            left = sorted(done.left)
            record = journal.replace(left=tuple(left))  # what the broker had of other topics may change hands
            if record.record != journal.record and len(left) <= MAX_LEFT:
                put = Put(keys.JOURNALS.key(broker), keys.JOURNALS.encode(record))
                await self._coordination.commit([Compare(put.key, journal.revision)], [put])  # else at the next try
            names = ", ".join(left[:NAMED])
            raise NeedsNewerBroker(
                "the journal contains messages or acks of topics whose records in coordination this broker cannot "
                f"read: {names}"
            )
        if done.segments or done.acks:
            logger.info(
                "recovered the journal of broker %s: %d segments, %d rows that were not in files yet, %d acks",
                broker,
                done.segments,
                done.rows,
                done.acks,
            )

    async def _record_reached(self, broker: str, journal: Versioned[JournalRecord]) -> Versioned[JournalRecord]:
        """Records that a journal can be reached again. Returns its record, as it is if it has changed meanwhile."""
        wanted = journal.replace(unknown=None)
        put = Put(keys.JOURNALS.key(broker), keys.JOURNALS.encode(wanted))
        revision = await self._coordination.commit([Compare(put.key, journal.revision)], [put])
        return wanted.stored(revision) if revision else journal

    async def _record_recovered(self, broker: str, journal: Versioned[JournalRecord]) -> Versioned[JournalRecord]:
        """Records that the journal was recovered, before anything of it is deleted: only then may slots be missing.
        Returns its record."""
        key = keys.JOURNALS.key(broker)
        while not journal.record.recovered:
            wanted = journal.replace(recovered=True)
            put = Put(key, keys.JOURNALS.encode(wanted))
            if revision := await self._coordination.commit([Compare(key, journal.revision)], [put]):
                return wanted.stored(revision)
            there = await self._coordination.get(key)
            if there is None:
                return journal  # another broker has finished
            journal = keys.JOURNALS.require(there)  # the leader may have noted something else
        return journal


class RequestedRecoveries:
    """The recoveries that were asked for and are under way."""

    def __init__(self, recovery: JournalRecovery, coordination: Coordination) -> None:
        self._recovery = recovery
        self._coordination = coordination
        self._running: dict[str, asyncio.Task[bool]] = {}

    async def recover(self, broker: str) -> bool:
        """Recovers the journal of a broker that is gone. Returns False if that goes on after ANSWER_S.

        Raises NotOwner if that broker lives, NeedsNewerBroker, Unavailable if the journal cannot be reached from
        here, and the errors of the recovery.
        """
        running = self._running.get(broker)
        if running is None:
            running = self._running[broker] = asyncio.create_task(self._recover(broker), name=f"recovery of {broker}")
            running.add_done_callback(lambda ended: self._ended(broker, ended))
        done, _ = await asyncio.wait([running], timeout=ANSWER_S)  # not cancelled with us
        return running.result() if done else False

    async def stop(self) -> None:
        """Ends them."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _recover(self, broker: str) -> bool:
        if await self._coordination.get(keys.BROKERS.key(broker)):
            raise NotOwner(f"broker {broker} is running, so no other broker may use its journal")
        there = await self._coordination.get(keys.JOURNALS.key(broker))
        if there is None or await self._recovery.recover(broker, keys.JOURNALS.require(there)):
            return True
        if why := self._recovery.left(broker):
            raise NeedsNewerBroker(why)
        raise Unavailable(f"this broker cannot reach the journal of broker {broker}")

    def _ended(self, broker: str, ended: asyncio.Task[bool]) -> None:
        del self._running[broker]
        _ = ended.cancelled() or ended.exception()  # may be the one nobody waits for


class Recovery(Service):
    """Recovers `journals`, also those that the leader has `requested`. `home` is the id of this process's folder."""

    def __init__(self, context: Context, home: str) -> None:
        coordination, membership = context.coordination, context.membership
        memory = RecoveryMemory(context.budget)
        replay = Replay(context.catalog, coordination, context.store, context.entries, memory)
        mine = context.generations
        self.journals = JournalRecovery(coordination, membership, replay, context.journals, home, mine, context.traces)
        described = context.journals.describe(context.broker)
        first_keys = context.journals.first_keys(context.broker)
        is_stored = context.journals.is_exclusive(described) or bool(first_keys)
        self.registration = JournalRegistration(
            coordination, membership, described, mine, context.changes, first_keys, is_stored
        )
        self.requested = RequestedRecoveries(self.journals, coordination)
        self._membership = membership
        self._roster = context.roster

    async def run(self) -> Tasks:
        """Says that this folder's journals are recovered: from now on the leader may assign segments to this broker.
        Raises NotReady."""
        if not await self._membership.open():
            raise NotReady("this broker's lease expired while it was starting")
        await self._roster.load()
        return {"journals left here": self.journals.recover_left_often()}

    async def stop(self) -> None:
        """Ends the recoveries that the leader has asked for."""
        await self.requested.stop()
