"""The recovery of a mirrored journal: its set is closed, its slots are fenced, and the run of one fenced holding is
copied into the store. Any broker can recover one, several brokers at once.

1. The key `mirrors/{broker}` becomes `closed`: no change of the set passes from here.
2. The slots are fenced (journal/object_recovery): no slot lands from here.
3. All living brokers fence what they hold of the journal, and say what it is as of the fence. One holding of the set is
   enough.
4. Its commits behind the slots go into slots below `_journals/{broker}~{nonce}/`, with a fresh nonce: now that mirror
   may die.
5. One compare-and-set makes the key `decided`: it names the copy. Of two recoveries that fenced two mirrors one counts.
6. The slots are replayed, and then the copy.

A key that is `decided` is final: who comes later begins at 6. A copy that no key names is of a recovery that crashed,
or came second; the removal of the journal, or the sweep, deletes it. If no holding of the set is left, or its mirror
does not answer, the journal is unknown and its segments wait (JournalUnreachable): it is never taken as empty.

The slots do not move between two recoveries, so both begin their copies at the same commit. A commit of the holding
that is below the first one behind the slots is in them, or was released: chains have it.

If the loss of the journal was accepted (`is_given_up`), any holding will do in step 3, and if none is left, the slots
alone. Step 5 then says that the decision `is_lossy`. A recovery that does not know yet that the loss was accepted takes
such a journal for unreachable: it must not give the segments away before they are to be sealed
(broker/cluster/accepted_loss).

A journal that is done (`done` in its folder) is empty, whatever its set says: coordination may be of an earlier day.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator

from seaweedq.checks import reach
from seaweedq.clock import Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import MirrorMember, MirrorsRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalDamaged, Unavailable, UnreadableBody
from seaweedq.journal.holdings import HeldCall, commits_of
from seaweedq.journal.interface import NOTHING_SEEN, Claim, FoundHolding, JournalUnreachable, Mirrors, Seen, highest
from seaweedq.journal.mirrored_journal import forget_mirrors
from seaweedq.journal.mirroring import chosen_holding
from seaweedq.journal.object_format import (
    COPY,
    PAGE,
    SlotHeaders,
    SlotKind,
    encode_slot,
    journal_folder,
    list_journal,
    read_header,
    slot_name,
)
from seaweedq.journal.object_recovery import DeadObjectJournal, read_slots, read_terms
from seaweedq.segments.frames import Commit
from seaweedq.segments.terms import Term
from seaweedq.storage.interface import ObjectStore

logger = logging.getLogger(__name__)


class DeadMirroredJournal:
    """The journal of a dead broker. Of one that `is_recovered`, by what its key says, anything may be missing. Of one
    that `is_given_up`, what is left counts as all."""

    def __init__(
        self,
        store: ObjectStore,
        headers: SlotHeaders,
        mirrors: Mirrors,
        ids: Ids,
        is_recovered: bool,
        is_given_up: bool = False,
    ) -> None:
        self._is_given_up = is_given_up
        self._store, self._headers, self._mirrors, self._ids = store, headers, mirrors, ids
        self._broker = headers.broker
        self._is_recovered = is_recovered
        self._slots = DeadObjectJournal(store, headers, is_recovered)
        self._copy = ""
        self._copied = range(0)

    async def fence(self) -> None:
        if self._is_recovered or (await list_journal(self._store, self._broker)).is_done:
            await self._slots.fence()
            return
        try:
            set_of = await self._close()
            reach("mirrors.closed")
        except JournalUnreachable:  # the set is unknown, but a rebuild of coordination reads the slots
            await self._slots.fence()
            raise
        await self._slots.fence()
        if set_of.record.state != "decided":
            set_of = await self._decide(set_of)
        if set_of.record.is_lossy and not self._is_given_up:
            raise JournalUnreachable(
                "the loss of this journal was accepted, so the leader continues without the rest of the journal"
            )
        if set_of.record.copy:
            self._copy, self._copied = f"{self._broker}{COPY}{set_of.record.copy}", range(set_of.record.slots)

    async def look(self) -> None:
        if self._is_recovered or (await list_journal(self._store, self._broker)).is_done:
            return
        there = await self._mirrors.coordination.get(keys.MIRRORS.key(self._broker))
        if there is None:
            raise _lost_set()
        record = keys.MIRRORS.require(there).record
        members = {one.holding for one in record.members}
        if record.is_lossy or (record.state != "decided" and members and not members & self._mirrors.own(self._broker)):
            raise JournalUnreachable(
                "this broker waits for a rebuild and is not a mirror of the journal, and each of the journal's mirrors "
                "has stopped, or waits for a rebuild, too"
            )

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        last = -1
        for reading in (self._slots.commits(claim), read_slots(self._store, self._copy, self._copied, claim)):
            async for commit in reading:
                if commit.number > last:  # else an empty slot, which says that its broker is idle
                    last = commit.number
                    yield commit
                del commit

    async def terms(self) -> dict[tuple[str, int], Term]:
        return highest([await self._slots.terms(), await read_terms(self._store, self._copy, self._copied)])

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Removes the content: the slots, which become `done` first, then the copies, then the set."""
        await self._slots.remove(stated)
        for name in await _copied_names(self._store, self._broker):
            reach("fence.delete")
            await self._store.delete(name)
        await forget_mirrors(self._mirrors, self._broker)

    async def close(self) -> None:
        pass

    async def _close(self) -> Versioned[MirrorsRecord]:
        """Closes the set, and returns it. Raises JournalUnreachable, CoordinationUnavailable, NeedsNewerBroker."""
        key = keys.MIRRORS.key(self._broker)
        while True:
            there = await self._mirrors.coordination.get(key)
            if there is None:
                if not self._is_given_up:
                    raise _lost_set()
                lost = Versioned.new(MirrorsRecord("closed", (MirrorMember("", ""),)))  # an empty set lacks nothing
                if revision := await self._mirrors.coordination.commit([Compare(key, 0)], [_put(key, lost)]):
                    return lost.stored(revision)
                continue
            held = keys.MIRRORS.require(there)
            if held.record.state != "open":
                return held
            closed = held.replace(state="closed")
            if revision := await self._mirrors.coordination.commit([Compare(key, held.revision)], [_put(key, closed)]):
                return closed.stored(revision)

    async def _decide(self, closed: Versioned[MirrorsRecord]) -> Versioned[MirrorsRecord]:
        """Copies what one holding has behind the slots, and has the key name the copy, unless it names another one.
        Raises JournalUnreachable, and as `fence`."""
        nonce, slots, is_lossy = await self._copy_one(closed.record)
        reach("mirrors.copied")
        key = keys.MIRRORS.key(self._broker)
        decided = closed.replace(state="decided", copy=nonce if slots else "", slots=slots, is_lossy=is_lossy)
        if revision := await self._mirrors.coordination.commit([Compare(key, closed.revision)], [_put(key, decided)]):
            reach("mirrors.decided")
            return decided.stored(revision)
        there = await self._mirrors.coordination.get(key)
        if there is None:
            raise JournalDamaged(
                f"coordination has lost the key that names the mirrors of the journal of broker {self._broker}",
                path=key,
                position=0,
            )
        return keys.MIRRORS.require(there)

    async def _copy_one(self, record: MirrorsRecord) -> tuple[str, int, bool]:
        """Returns the nonce of the copy, how many slots it has, and whether commits may be missing."""
        members = {one.holding for one in record.members}
        found, silent = await self._mirrors.fence(self._broker)
        reach("mirrors.fenced")
        while (chosen := chosen_holding(members, [one.fenced for one in found], self._is_given_up)) is not None:
            at = next(one for one in found if one.fenced == chosen)
            try:
                return *await self._copy_from(at), bool(members) and chosen.holding not in members
            except LookupError as error:
                at_broker = f"broker {at.broker}" if at.broker else "this broker"
                logger.warning("journal copy %s at %s cannot be read: %s", chosen.holding, at_broker, error)
                silent += filter(None, [at.broker])
                found.remove(at)
        if members and not self._is_given_up:
            mirrors = [one.broker for one in record.members]
            asked = ", and no running broker has a complete copy of the journal"
            if silent:
                asked = f"; {', '.join(silent)} did not answer"
            raise JournalUnreachable(
                f"none of the journal's mirrors ({', '.join(mirrors)}) can be read{asked}", silent, mirrors
            )
        return "", 0, bool(members)

    async def _copy_from(self, at: FoundHolding) -> tuple[str, int]:
        """Copies a holding. Raises LookupError if it cannot be read any more, StoreUnavailable."""
        first, nonce, slots = max(await self._behind_slots(), at.fenced.first), self._ids.nonce(), 0
        name = f"{self._broker}{COPY}{nonce}"
        while first < at.fenced.end:
            commits = await self._read(at, first)
            frames = [frame for commit in commits for frame in commit.frames]
            number = commits[-1].number
            header = SlotHeaders(name, self._ids, self._headers.level, self._headers.seen).make(
                SlotKind.DATA, slots, 0, slots, number + 1
            )
            reach("mirrors.copy")
            bytes_of = await asyncio.to_thread(encode_slot, header, frames)
            await self._store.create(slot_name(name, slots), bytes_of)  # nobody else has the nonce
            first, slots = number + 1, slots + 1
        return nonce, slots

    async def _read(self, at: FoundHolding, first: int) -> list[Commit]:
        """Returns commits of a holding from `first` on, or from its first one. Raises LookupError."""
        try:
            data = await self._mirrors.held(at.broker, HeldCall(at.fenced.holding, first))
            found = await asyncio.to_thread(lambda: list(commits_of(data))) if data else []
        except (Unavailable, UnreadableBody, JournalDamaged) as error:
            raise LookupError(str(error)) from error
        if not found or found[-1].number < first:
            raise LookupError("the mirror no longer has this part of the journal")
        return found

    async def _behind_slots(self) -> int:
        """Returns the number of the first commit that the slots lack. Raises JournalUnreachable."""
        numbers = self._slots.numbers
        if not numbers:
            return 0
        try:
            return (await read_header(self._store, self._broker, numbers[-1])).commit + 1
        except FileNotFoundError:
            raise JournalUnreachable("another broker has recovered this journal, and is deleting it") from None


def _lost_set() -> JournalUnreachable:
    return JournalUnreachable(
        "the mirrors of the journal are unknown, because coordination has lost the key that names them"
    )


def _put(key: str, record: Versioned[MirrorsRecord]) -> Put:
    return Put(key, keys.MIRRORS.encode(record))


async def _copied_names(store: ObjectStore, broker: str) -> list[str]:
    """Returns the names of all slots of a journal's copies."""
    prefix, names = journal_folder(broker).removesuffix("/") + COPY, list[str]()
    while True:
        page = await store.list(prefix, names[-1] if names else "", PAGE)
        names += page
        if len(page) < PAGE:
            return names
