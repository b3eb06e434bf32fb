"""The put of one slot, repeated until the store says whose the name is.

A put whose answer is lost may have landed, or may yet: nothing but the same bytes may be put under that name again. On
*exists* the nonce inside decides: mine means done, another's means Fenced. A slot that cannot be read is unknown, and
the put is repeated. There is no limit to that: callers that wait for the slot have limits of their own.
"""

import asyncio
import logging
from collections.abc import Sequence

from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Sleep
from seaweedq.errors import Fenced, JournalDamaged, NeedsNewerBroker, StoreUnavailable
from seaweedq.failpoints import reach
from seaweedq.journal.object_format import SlotHeader, encode_slot, slot_name
from seaweedq.journal.object_listing import read_header
from seaweedq.journal.pacing import USUAL_AT_FIRST_S, next_usual_s, patience_s
from seaweedq.journal.put_budget import PutBudget
from seaweedq.segments.frames import Frame
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.pauses import Pauses

LAST_PAUSE_S = 1.0  # publishes wait for it, and there are few puts at a time
_INLINE_BYTES = 256 * 1024  # more than that is encoded in a thread

logger = logging.getLogger(__name__)


class SlotWriter:
    """A writer of slots, several at a time. `failing` is why the last try of a put failed, None after a success."""

    def __init__(self, store: ObjectStore, clock: Clock, sleep: Sleep, budget: PutBudget) -> None:
        self.failing: StoreUnavailable | None = None
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._budget = budget
        self._usual_s = USUAL_AT_FIRST_S

    def begin(self, header: SlotHeader, frames: Sequence[Frame]) -> asyncio.Task[int]:
        """Begins to make the slot durable; the task returns its size in bytes. It raises Fenced where another writer's
        has its name.

        The put is spent here, before the slot is encoded: a commit that is paced meanwhile has to wait for its turn.
        """
        self._budget.spend(self._clock.monotonic_s())
        return asyncio.create_task(self._put(header, frames))

    async def _put(self, header: SlotHeader, frames: Sequence[Frame]) -> int:
        if sum(memoryview(frame.payload).nbytes for frame in frames) > _INLINE_BYTES:
            data = await asyncio.to_thread(encode_slot, header, frames)
        else:
            data = encode_slot(header, frames)
        reach("slot.put")
        pauses = Pauses(self._store.worked, self._sleep, LAST_PAUSE_S)
        while not await self._try(header, data):
            await pauses.take()
            self._budget.spend(self._clock.monotonic_s())
        self._store.worked.wake()
        reach("slot.stored")
        return len(data)

    async def _try(self, header: SlotHeader, data: bytes) -> bool:
        """Returns whether the slot certainly exists; False means unknown."""
        name = slot_name(header.broker, header.number)
        try:
            if not await self._create(name, data):
                await self._check_mine(header)
        except StoreUnavailable as error:
            self.failing = error
            logger.warning("%s is not stored yet, trying again: %s", name, error)
            return False
        self.failing = None
        return True

    async def _create(self, name: str, data: bytes) -> bool:
        """Puts the slot, a second time beside it where that is slow. The first answer counts, an unknown one last."""
        begun = self._clock.monotonic_s()
        patience = asyncio.ensure_future(self._sleep(patience_s(self._usual_s, len(data))))
        tries = {self._request(name, data)}
        try:
            await asyncio.wait({*tries, patience}, return_when=asyncio.FIRST_COMPLETED)
            if patience.done():
                self._budget.spend(self._clock.monotonic_s())
                tries.add(self._request(name, data))
            while True:
                ended, tries = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
                if known := [each for each in ended if each.exception() is None]:
                    self._usual_s = next_usual_s(self._usual_s, self._clock.monotonic_s() - begun)
                    return known[0].result()
                if not tries:
                    return ended.pop().result()  # raises
        finally:
            for each in (patience, *tries):
                each.cancel()

    def _request(self, name: str, data: bytes) -> asyncio.Task[bool]:
        task = asyncio.create_task(_create_one(self._store, name, data))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # may be the one nobody waits for
        return task

    async def _check_mine(self, header: SlotHeader) -> None:
        name = slot_name(header.broker, header.number)
        try:
            nonce = (await read_header(self._store, header.broker, header.number)).nonce
        except NeedsNewerBroker:
            nonce = ""  # of a later version, so it is not mine
        except (FileNotFoundError, JournalDamaged) as error:
            raise StoreUnavailable(f"{name} exists and cannot be read: unknown whose it is") from error
        if nonce != header.nonce:
            raise Fenced(f"{name} was taken by a recovery of this broker's journal")


async def _create_one(store: ObjectStore, name: str, data: bytes) -> bool:
    return await store.create(name, data)
