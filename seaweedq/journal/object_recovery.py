"""The recovery of an object journal: fence, read what counts, remove. Any broker can do it, several at once.

The slots that count are the run from the highest `released` to the first gap or fence. The fence takes that gap, and
holds only if, looking again once it is there, the run still ends there: else its broker had passed that place already,
acknowledged more, and deleted the slot, so that the name was free. From a fence that holds on, the broker acknowledges
nothing: it acknowledges in order, and that one name it can never have.

A fence at or above the highest `released` of a look that began when the fence existed holds, whichever broker put it.
Where slots below such a fence are missing, another recovery has finished, and deletes: nothing of them is needed.

Every step can be repeated. The fence stays for ever, since a put of its broker may still be under way.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from seaweedq.clock import Ids
from seaweedq.errors import JournalDamaged
from seaweedq.failpoints import reach
from seaweedq.journal.object_format import (
    SlotHeader,
    SlotKind,
    decode_slot,
    encode_slot,
    journal_folder,
    near,
    slot_bytes,
    slot_name,
    valid_run,
)
from seaweedq.journal.object_listing import batches, delete_slots, list_slots, read_header
from seaweedq.segments.commits import Commit
from seaweedq.storage.interface import ObjectStore

PIECE_BYTES = 256 * 1024  # of a slot that are read ahead of its turn
READ_AHEAD = 32  # slots
logger = logging.getLogger(__name__)


class DeadObjectJournal:
    """The slots of a dead broker. `fence` leaves a fence in the store for ever; nothing is held in this process."""

    def __init__(self, store: ObjectStore, broker: str, ids: Ids) -> None:
        self._store = store
        self._broker = broker
        self._ids = ids
        self._slots: range | None = None

    async def fence(self) -> None:
        self._slots = await fence(self._store, self._broker, self._ids)

    def commits(self) -> AsyncGenerator[Commit, None]:
        assert self._slots is not None, "the journal was not fenced"
        return read_slots(self._store, self._broker, self._slots)

    async def remove(self) -> None:
        await remove_slots(self._store, self._broker)

    async def close(self) -> None:
        pass


async def fence(store: ObjectStore, broker: str, ids: Ids) -> range:
    """Fences the journal of a dead broker and returns the numbers of the slots that count.

    From here the broker acknowledges nothing more. Raises JournalDamaged, StoreUnavailable: what the journal holds is
    unknown.
    """
    known: int | None = None  # a fence that was there before the look
    headers: dict[int, SlotHeader] = {}  # read once: a name that is used anew is behind what was released
    while True:
        run = valid_run(await _look(store, broker, headers), headers)
        if run.fence is None:
            header = SlotHeader(SlotKind.FENCE, broker, run.end, ids.nonce(), run.first)
            reach("fence.put")
            await store.create(slot_name(broker, run.end), encode_slot(header, ()))
            known = run.end  # a fence of ours or of another recovery, or a late slot
        elif run.fence == known:
            return range(run.first, run.end)
        else:
            known = run.fence
        reach("fence.check")


async def read_slots(store: ObjectStore, broker: str, slots: range) -> AsyncGenerator[Commit, None]:
    """Yields the commits of slots that count, in order; memory holds one and the beginnings of READ_AHEAD more.

    Ends early where a slot is missing: another recovery has finished, so all rows and acks are where they belong.
    Raises JournalDamaged, StoreUnavailable.
    """
    ahead: deque[asyncio.Task[bytes]] = deque()
    numbers = iter(slots)
    try:
        for number in slots:
            while len(ahead) < READ_AHEAD and (later := next(numbers, None)) is not None:
                ahead.append(asyncio.create_task(_begin_reading(store, slot_name(broker, later))))
            commit = await _read_rest(store, slot_name(broker, number), await ahead.popleft())
            assert commit.number == number, "a slot has the number that was asked for"
            yield commit
    except FileNotFoundError:
        logger.info("slots of %s go while they are read: another recovery has finished", journal_folder(broker))
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def remove_slots(store: ObjectStore, broker: str) -> None:
    """Deletes a recovered journal but for its fence. Raises JournalDamaged where there are slots and no fence."""
    headers: dict[int, SlotHeader] = {}
    numbers = await _look(store, broker, headers)
    fences = [number for number, header in headers.items() if header.kind is SlotKind.FENCE]
    if numbers and not fences:
        raise JournalDamaged(f"{journal_folder(broker)} has no fence", path=journal_folder(broker), position=0)
    for batch in batches([number for number in numbers if number != max(fences)]):
        reach("fence.delete")
        await delete_slots(store, broker, batch)


async def _look(store: ObjectStore, broker: str, headers: dict[int, SlotHeader]) -> list[int]:
    """Returns the numbers of all slots; adds the headers that valid_run needs. Begins again if a slot is deleted."""
    while True:
        numbers = await list_slots(store, broker)
        lowest = near(numbers[-1]) if numbers else 0
        try:
            await _read_headers(store, broker, [number for number in numbers if number >= lowest], headers)
            for number in reversed(numbers):
                await _read_headers(store, broker, [number], headers)
                if headers[number].kind is SlotKind.DATA:
                    break
        except FileNotFoundError:
            continue
        return numbers


async def _read_headers(
    store: ObjectStore, broker: str, numbers: Sequence[int], headers: dict[int, SlotHeader]
) -> None:
    for batch in batches([number for number in numbers if number not in headers]):
        found = await asyncio.gather(*(read_header(store, broker, number) for number in batch))
        headers.update(zip(batch, found, strict=True))


async def _begin_reading(store: ObjectStore, name: str) -> bytes:
    return await store.read(name, 0, PIECE_BYTES)


async def _read_rest(store: ObjectStore, name: str, beginning: bytes) -> Commit:
    size = slot_bytes(beginning, name)
    if len(beginning) < size:
        beginning += await store.read(name, len(beginning), size)
    return (await asyncio.to_thread(decode_slot, beginning, name))[1]
