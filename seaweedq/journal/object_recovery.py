"""The recovery of an object journal (fence, read what counts, remove), and the sweep of its rests. Any broker can
recover one, several brokers at once.

The slots that count are the run from the highest `released` to the first gap or fence. The fence takes that gap, and
holds only if, looking again once it is there, the run still ends there: else its broker had passed that place already,
acknowledged more, and deleted the slot, so that the name was free. From a fence that holds on, the broker acknowledges
nothing: it acknowledges in order, and that one name it can never have.

Of two recoveries one may begin further down: a slot that lands behind the fence, between their scans, states a higher
`released`. Both are right, since nothing below it is needed, and all of it is there: its broker deletes only what an
acknowledged slot has let go of.

A fence at or above the highest `released` of a scan that began when the fence existed holds, whichever broker put it.

A slot is missing that was there where the run ends below what a slot states as acknowledged, or below a fence that
holds, or where a slot of the run is gone when it is read. Then either another recovery, or the clean stop of its
broker, has finished and deletes: the journal's key says so, or is gone (broker/recovery/journal_recovery looks). Or the
slot was lost: that is damage, and nothing is put or deleted. One scan is not enough for it, since slots land and go
while a listing is read; a name that the listing left out is read itself.

A removal begins with the object `done`, behind the note in the journal's key. A journal that has it is empty for a
recovery, and none of its slots is missing, also where coordination is of an earlier day and its key does not say
`recovered`.

Every step can be repeated. The fence stays for ever, since a put of its broker may still be under way.

The *sweep* deletes what dead brokers have left below `_journals/` when nobody needs it. A recovery leaves a fence,
since a put of the dead broker may still be under way; a late twin of a hedged put comes back behind a recovery, or
behind the clean stop of its broker. A journal goes if it says itself that it is done, and coordination has neither its
key nor its broker's: as long as there is one, a recovery may be at it. The journal alone decides whether it is needed.
One that is not done and has no key was forgotten by coordination, which then is of an earlier day; the sweep leaves it.

Of those, one that holds nothing gets `done` from the sweep, behind a fence: a journal without a slot with data, and one
of an earlier generation than this broker's. A rebuild lists the journals behind the object of its generation, and gives
each that is needed a key. So the first slot of one that it did not find came behind that object, and its broker has
seen the object before it acknowledged anything (broker/log/group_commit).

A journal stays for a week behind its newest object, by the store's clock: no put is under way for so long. The slots
go in their order, the fence among the last, and `done` behind all of them; a sweep that is cut off leaves `done`, and
what is left goes with the next one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from functools import partial

from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.errors import JournalDamaged, NeedsNewerBroker, SeaweedqError, StoreUnavailable
from seaweedq.journal.interface import AHEAD_BYTES, NOTHING_SEEN, Claim, Seen, highest
from seaweedq.journal.object_format import (
    BATCH,
    COPY,
    JOURNALS_FOLDER,
    PAGE,
    Run,
    SlotHeader,
    SlotHeaders,
    SlotKind,
    batches,
    decode_slot,
    delete_slots,
    done_name,
    encode_slot,
    index_end,
    journal_folder,
    list_journal,
    near,
    put_done,
    read_done,
    read_header,
    slot_bytes,
    slot_name,
    slot_number,
    slot_terms,
    valid_run,
)
from seaweedq.segments.frames import Commit
from seaweedq.segments.terms import Term
from seaweedq.storage.interface import ObjectStore, folders

PIECE_BYTES = 256 * 1024  # of a slot that are read ahead of its turn
READ_AHEAD = AHEAD_BYTES // PIECE_BYTES  # slots
INDEX_BYTES = 16 * 1024  # of a slot hold its index in most cases
LISTINGS = 20  # in one scan: each is begun because a slot that was listed has gone
KEPT_S = 7 * 86_400.0
logger = logging.getLogger(__name__)


class DeadObjectJournal:
    """The slots of a dead broker. `fence` leaves a fence in the store for ever; nothing is held in this process.

    Of a journal that `is_recovered`, by what its key says, slots may be missing.
    """

    def __init__(self, store: ObjectStore, headers: SlotHeaders, is_recovered: bool) -> None:
        self._store = store
        self._headers = headers
        self._broker = headers.broker
        self._is_recovered = is_recovered
        self._slots: range | None = None

    async def fence(self) -> None:
        self._slots = await fence(self._store, self._headers, self._is_recovered)

    async def look(self) -> None:
        pass

    @property
    def numbers(self) -> range:
        """Returns the numbers of the slots that count, once they are fenced."""
        assert self._slots is not None, "the journal was not fenced"
        return self._slots

    def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        return read_slots(self._store, self._broker, self.numbers, claim)

    async def terms(self) -> dict[tuple[str, int], Term]:
        return await read_terms(self._store, self._broker, self.numbers)

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        await remove_slots(self._store, self._broker, stated)

    async def close(self) -> None:
        pass


async def fence(store: ObjectStore, headers: SlotHeaders, is_recovered: bool = False) -> range:
    """Fences the journal of a dead broker and returns the numbers of the slots that count.

    From here the broker acknowledges nothing more. Raises JournalDamaged, NeedsNewerBroker, StoreUnavailable: what the
    journal holds is unknown. Unless it `is_recovered` or done, a slot that is missing is damage; of a journal that is
    done none counts.
    """
    scans = _Scans(store, headers.broker)
    known: int | None = None  # a fence that was there before the scan
    while True:
        run = await scans.run()
        if run.is_torn and not (is_recovered or scans.is_done):
            await scans.check_torn(run)
        elif run.fence is None:
            header = headers.make(SlotKind.FENCE, run.end, run.first, 0)
            reach("fence.put")
            if await store.create(slot_name(headers.broker, run.end), encode_slot(header, ())):
                scans.headers[run.end] = header
            else:
                await scans.add_unlisted(run.end)
            known = run.end  # a fence of ours or of another recovery, or a late slot
        elif run.fence == known:
            return range(run.first, run.first if scans.is_done else run.end)
        else:
            known = run.fence
        reach("fence.check")


async def read_slots(store: ObjectStore, broker: str, slots: range, claim: Claim) -> AsyncGenerator[Commit, None]:
    """Yields the commits of slots that count, in order; memory holds one and the beginnings of READ_AHEAD more. Claims
    room for each slot before its rest is read.

    Raises JournalDamaged, also if a slot is missing, NeedsNewerBroker, StoreUnavailable.
    """
    ahead: deque[asyncio.Task[bytes]] = deque()
    numbers = iter(slots)
    try:
        for number in slots:
            while len(ahead) < READ_AHEAD and (later := next(numbers, None)) is not None:
                ahead.append(asyncio.create_task(store.read(slot_name(broker, later), 0, PIECE_BYTES)))
            name = slot_name(broker, number)
            try:
                beginning = await ahead.popleft()
            except FileNotFoundError as error:
                raise _missing(broker, number, "the object existed before") from error
            await claim(slot_bytes(beginning, name))
            try:
                commit = await _read_rest(store, name, beginning)
            except FileNotFoundError as error:
                raise _missing(broker, number, "the object existed before") from error
            del beginning
            yield commit
            del commit  # its memory may be let go of while room for the next one is claimed
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def read_terms(store: ObjectStore, broker: str, slots: range) -> dict[tuple[str, int], Term]:
    """Returns the highest term of each segment in slots that count. Raises as `read_slots`."""

    async def read(number: int) -> dict[tuple[str, int], Term]:
        name = slot_name(broker, number)
        try:
            data = await store.read(name, 0, INDEX_BYTES)
            if (end := index_end(data, name)) > len(data):
                data += await store.read(name, len(data), end)
        except FileNotFoundError as error:
            raise _missing(broker, number, "the object existed before") from error
        return slot_terms(data, name)

    return highest(await gather_bounded(BATCH, read, slots))


async def remove_slots(store: ObjectStore, broker: str, stated: Seen = NOTHING_SEEN) -> None:
    """Deletes a recovered journal but for its fence, and puts `done` before. Raises JournalDamaged if there are slots
    and no fence."""
    scans = _Scans(store, broker)
    numbers = await scans.numbers()
    fences = await scans.fences(numbers)
    if numbers and not fences:
        raise JournalDamaged(f"{journal_folder(broker)} has no fence", path=journal_folder(broker), position=0)
    if numbers and not scans.is_done:
        await put_done(store, broker, stated)
    for batch in batches([number for number in numbers if number != max(fences)]):
        reach("fence.delete")
        await delete_slots(store, broker, batch)


class _Scans:
    """The findings of scans at one journal. `headers` are read once: a name that is used anew is behind what was
    released. `is_done` says whether the newest scan has found `done`."""

    def __init__(self, store: ObjectStore, broker: str) -> None:
        self.headers: dict[int, SlotHeader] = {}
        self.is_done = False
        self._store = store
        self._broker = broker
        self._unlisted: set[int] = set()  # slots that exist, though a listing left them out
        self._doubted: int | None = None  # the slot that the scan before missed

    async def run(self) -> Run:
        """Scans once more, and returns the slots that count."""
        return valid_run(await self.numbers(), self.headers)

    async def numbers(self) -> list[int]:
        """Returns the numbers of all slots; adds the headers that valid_run needs.

        Begins again if a slot is deleted meanwhile. Raises StoreUnavailable if that does not end.
        """
        for _ in range(LISTINGS):
            listed, self.is_done = await list_journal(self._store, self._broker)
            numbers = sorted({*listed, *self._unlisted})
            lowest = near(numbers[-1]) if numbers else 0
            try:
                await self._read([number for number in numbers if number >= lowest])
                for number in reversed(numbers):
                    await self._read([number])
                    if self.headers[number].kind is SlotKind.DATA:
                        break
            except FileNotFoundError:
                continue
            return numbers
        raise StoreUnavailable(f"the store lists journal objects in {journal_folder(self._broker)} that do not exist")

    async def fences(self, numbers: Sequence[int]) -> list[int]:
        """Returns the fences among these slots. One far below the newest slot is searched for only if it is the last:
        a stop that was cut short left slots behind the first gap."""
        if not (found := self._fences()):
            await self._read(numbers)
            found = self._fences()
        return found

    async def check_torn(self, run: Run) -> None:
        """Looks for the slot at which a run is torn. Raises JournalDamaged if a scan that began after it was missed
        misses it too."""
        number = run.end
        if number in self.headers and self.headers[number].kind is SlotKind.FENCE:
            if number == self._doubted:
                raise _missing(
                    self._broker,
                    number,
                    "another object has its number, which a recovery wrote to end the journal; but the journal "
                    f"continued up to object number {run.reached - 1}",
                )
        elif not await self.add_unlisted(number) and number == self._doubted:
            raise _missing(
                self._broker, number, f"the journal once contained all objects with numbers below {run.reached}"
            )
        self._doubted = number

    async def add_unlisted(self, number: int) -> bool:
        """Returns whether a slot exists, whatever listings say. It counts as listed then."""
        try:
            self.headers[number] = await read_header(self._store, self._broker, number)
        except FileNotFoundError:
            return False
        self._unlisted.add(number)
        return True

    def _fences(self) -> list[int]:
        return [number for number, header in self.headers.items() if header.kind is SlotKind.FENCE]

    async def _read(self, numbers: Sequence[int]) -> None:
        for batch in batches([number for number in numbers if number not in self.headers]):
            found = await asyncio.gather(*(read_header(self._store, self._broker, number) for number in batch))
            self.headers.update(zip(batch, found, strict=True))


async def _read_rest(store: ObjectStore, name: str, beginning: bytes) -> Commit:
    size = slot_bytes(beginning, name)
    if len(beginning) < size:
        beginning += await store.read(name, len(beginning), size)
    header, commit = await asyncio.to_thread(decode_slot, beginning, name)
    if header.kind is SlotKind.FENCE:
        raise JournalDamaged(
            f"{name} marks the end of the journal, although the journal continues", path=name, position=0
        )
    return commit


def _missing(broker: str, number: int, why: str) -> JournalDamaged:
    name = slot_name(broker, number)
    return JournalDamaged(f"{name} is missing: {why}", path=name, position=0)


async def needed(store: ObjectStore) -> list[tuple[str, SlotHeader | SeaweedqError]]:
    """Returns the brokers whose journals have a slot with data, and no `done`: with the newest of these slots' headers,
    or the error of reading it. Raises StoreUnavailable."""
    slots, done = await _listed(store)

    async def read(broker: str) -> tuple[str, SlotHeader | SeaweedqError | None]:
        try:
            return broker, await newest_data(store, broker, slots[broker])
        except StoreUnavailable:
            raise
        except SeaweedqError as error:
            return broker, error

    found = await gather_bounded(BATCH, read, [broker for broker in slots if broker not in done])
    return [(broker, header) for broker, header in found if header is not None]


async def stated(store: ObjectStore) -> Seen:
    """Returns the highest moment that journals state which are done. Raises StoreUnavailable."""
    _, done = await _listed(store)
    return max(await gather_bounded(BATCH, partial(read_done, store), sorted(done)), default=NOTHING_SEEN)


async def _listed(store: ObjectStore) -> tuple[dict[str, list[int]], set[str]]:
    """Returns the slots of all journals by broker, and the brokers whose journals are done."""
    slots: dict[str, list[int]] = {}
    done: set[str] = set()
    names = await store.list(JOURNALS_FOLDER, limit=PAGE)
    while names:
        for name in names:
            broker = name.removeprefix(JOURNALS_FOLDER).partition("/")[0]
            if COPY in broker:
                continue  # is of a recovery, and no journal by itself
            if (number := slot_number(name, broker)) is not None:
                slots.setdefault(broker, []).append(number)
            elif name == done_name(broker):
                done.add(broker)
        names = await store.list(JOURNALS_FOLDER, names[-1], PAGE) if len(names) == PAGE else []
    return slots, done


async def newest_data(store: ObjectStore, broker: str, numbers: Sequence[int]) -> SlotHeader | None:
    """Returns the header of the newest of these slots, or those that come meanwhile, that has data; None if there is
    none, or the journal is done by now. Raises JournalDamaged, NeedsNewerBroker, StoreUnavailable."""
    for _ in range(LISTINGS):
        try:
            for number in sorted(numbers, reverse=True):
                header = await read_header(store, broker, number)
                if header.kind is SlotKind.DATA:
                    return header
            return None
        except FileNotFoundError:  # its broker lives and goes on, or somebody removes it
            journal = await list_journal(store, broker)
            numbers = journal.slots if journal.is_needed else []
    raise StoreUnavailable(f"the store lists journal objects in {journal_folder(broker)} that do not exist")


async def sweep(
    store: ObjectStore, headers_of: Callable[[str], SlotHeaders], read_known: Callable[[], Awaitable[Container[str]]]
) -> int:
    """Deletes the journals that are done and old, and makes done those that hold nothing: `read_known` reads which
    brokers live, or have a journal's key. Returns the number of deleted objects."""
    found = [folder async for folder in folders(store, JOURNALS_FOLDER)]
    known = await read_known()
    removed = 0
    for folder in found:
        broker, copy, _ = folder.removeprefix(JOURNALS_FOLDER).removesuffix("/").partition(COPY)
        if broker not in known:
            removed += await (_remove_copy(store, broker, folder) if copy else _remove(store, headers_of(broker)))
    return removed


async def _remove_copy(store: ObjectStore, broker: str, folder: str) -> int:
    """Deletes a copy of a mirrored journal whose key is gone, if no object of it is younger than a week, and the
    journal itself is not needed: then coordination is of an earlier day."""
    if (await list_journal(store, broker)).is_needed:
        return 0
    names = await store.list(folder, limit=PAGE)
    try:
        if await store.age_s(names[-1]) < KEPT_S:
            return 0
    except (IndexError, FileNotFoundError):  # another leader's sweep is at it
        return 0
    for name in names:
        reach("journals.sweep")
        await store.delete(name)
    return len(names)


async def _remove(store: ObjectStore, headers: SlotHeaders) -> int:
    broker = headers.broker
    journal = await list_journal(store, broker)
    try:
        if journal.is_needed:
            await _end_if_empty(store, headers, journal.slots)
        if not journal.is_done or not await _is_old(store, broker, journal.slots):
            return 0
    except FileNotFoundError:  # another leader's sweep is at it
        return 0
    except (JournalDamaged, NeedsNewerBroker) as error:
        logger.warning("keeping %d objects of a journal that coordination does not know: %s", len(journal.slots), error)
        return 0
    for batch in batches(journal.slots):
        reach("journals.sweep")
        await delete_slots(store, broker, batch)
    reach("journals.sweep")
    await store.delete(done_name(broker))
    return len(journal.slots) + 1


async def _end_if_empty(store: ObjectStore, headers: SlotHeaders, numbers: Sequence[int]) -> None:
    """Fences a journal that holds nothing, and puts `done`. Raises JournalDamaged, NeedsNewerBroker."""
    newest, folder = await newest_data(store, headers.broker, numbers), journal_folder(headers.broker)
    if newest is not None and newest.seen.generation >= headers.seen()[0]:
        logger.warning(
            "keeping the journal %s with %d objects: coordination does not know this journal, but its messages may "
            "still be needed",
            folder,
            len(numbers),
        )
        return
    await fence(store, headers)
    await put_done(store, headers.broker)
    logger.info(
        "closed the journal %s, because it contains no messages that are still needed; coordination does not know "
        "this journal",
        folder,
    )


async def _is_old(store: ObjectStore, broker: str, numbers: list[int]) -> bool:
    """Returns whether all of these are slots of that broker, and neither they nor `done` are younger than a week."""
    if await store.age_s(done_name(broker)) < KEPT_S:
        return False
    for batch in batches(numbers[::-1]):
        names = [slot_name(broker, number) for number in batch]
        if min(await asyncio.gather(*map(store.age_s, names))) < KEPT_S:
            return False
        await asyncio.gather(*(read_header(store, broker, number) for number in batch))  # raises for another's
    return True
