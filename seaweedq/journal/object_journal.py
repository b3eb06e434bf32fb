"""The writer of an object journal: each commit is one object of the store, a slot. One folder for each broker start.

Owns the order of writes, and why. Names are taken by create-if-absent, so that a recovery can take one too:

1. A slot says, as of its making, below which number nothing is needed any more (`released`), and below which all was
   acknowledged. Only rows count as released that the chains certainly have.
2. Up to `window` puts are under way. Each is repeated with the same bytes until the store says whose the name is.
3. A slot is acknowledged when it and all before it are durable: recovery reads up to the first gap.
4. If another has the name, a recovery has fenced the journal: that slot and all later ones, for ever, are refused.
   The slots before it go on, since the recovery reads them.
5. A slot is deleted once an acknowledged newer one says that it is not needed. So the newest stays, which tells a
   recovery where to begin; and no name that a recovery may look for is ever free again.
6. A broker at rest with everything released says so in one empty slot. Then the older ones go, and it asks for nothing.

A commit's number is its slot's, so an empty slot leaves a hole in the commits' numbers. The rests of a
crash between any two steps are in docs/internals/object-journal.md; a recovery's use for them, in
journal/object_recovery.

A put whose answer is lost may have landed, or may yet: nothing but the same bytes may be put under that name again. On
*exists* the nonce inside decides: mine means done, another's means Fenced. A slot that cannot be read is unknown, and
the put is repeated. There is no limit to that: callers that wait for the slot have limits of their own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seaweedq.checks import reach, require
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Sleep, sleep_unless
from seaweedq.concurrency.futures import fail
from seaweedq.errors import Fenced, JournalDamaged, JournalUnavailable, NeedsNewerBroker, StoreUnavailable
from seaweedq.journal.interface import NOTHING_SEEN, Seen
from seaweedq.journal.object_format import (
    BATCH,
    SlotHeader,
    SlotHeaders,
    SlotKind,
    batches,
    delete_slots,
    encode_slot,
    journal_folder,
    list_slots,
    put_done,
    read_header,
    slot_name,
)
from seaweedq.journal.pacing import USUAL_AT_FIRST_S, Pace, Pacer, PutBudget, next_usual_s, patience_s
from seaweedq.segments.frames import Frame, check_frames
from seaweedq.storage.interface import ObjectStore, Pauses

LAST_PAUSE_S = 1.0  # publishes wait for it, and there are few puts at a time
MOST_SLOTS = 4_000  # that are needed at a time: some seconds of a recovery
_INLINE_BYTES = 256 * 1024  # more than that is encoded in a thread

logger = logging.getLogger(__name__)


class SlotWriter:
    """A writer of slots, several at a time."""

    def __init__(self, store: ObjectStore, clock: Clock, sleep: Sleep, budget: PutBudget) -> None:
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._budget = budget
        self._usual_s = USUAL_AT_FIRST_S

    def begin(self, header: SlotHeader, frames: Sequence[Frame]) -> asyncio.Task[int]:
        """Begins to make the slot durable; the task returns its size in bytes. It raises Fenced if another writer's
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
            await pauses.wait()
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
            logger.warning("the journal object %s is not stored yet (%s); retrying", name, error)
            return False
        return True

    async def _create(self, name: str, data: bytes) -> bool:
        """Puts the slot, a second time beside it if that is slow. The first answer counts, an unknown one last."""
        begun = self._clock.monotonic_s()
        patience = asyncio.ensure_future(self._sleep(patience_s(self._usual_s, len(data))))
        tries = [self._request(name, data)]
        try:
            await asyncio.wait({*tries, patience}, return_when=asyncio.FIRST_COMPLETED)
            if patience.done():
                self._budget.spend(self._clock.monotonic_s())
                tries.append(self._request(name, data))
            while True:
                await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
                ended = [each for each in tries if each.done()]
                if known := [each for each in ended if each.exception() is None]:
                    self._usual_s = next_usual_s(self._usual_s, self._clock.monotonic_s() - begun)
                    return known[0].result()
                tries = [each for each in tries if each not in ended]
                if not tries:
                    return ended[0].result()  # raises
        finally:
            for each in (patience, *tries):
                each.cancel()

    def _request(self, name: str, data: bytes) -> asyncio.Task[bool]:
        task = asyncio.create_task(self._store.create(name, data))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # may be the one nobody waits for
        return task

    async def _check_mine(self, header: SlotHeader) -> None:
        name = slot_name(header.broker, header.number)
        try:
            nonce = (await read_header(self._store, header.broker, header.number)).nonce
        except NeedsNewerBroker:
            nonce = ""  # of a later version, so it is not mine
        except (FileNotFoundError, JournalDamaged) as error:
            raise StoreUnavailable(
                f"the journal object {name} exists but cannot be read, so it is unknown which broker wrote it"
            ) from error
        if nonce != header.nonce:
            raise Fenced(f"another broker has begun to recover this broker's journal, and has written {name}")


@dataclass(eq=False, slots=True)
class _Slot:
    """A slot under way. `is_rest` marks the journal's own slot of rule 6, for which nobody waits."""

    header: SlotHeader
    is_rest: bool
    put: asyncio.Task[int]
    done: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ObjectJournal:
    """A journal of the broker of `headers`, which has none yet. Must be made on a running event loop."""

    mirrors: tuple[str, ...] = ()

    def __init__(
        self, store: ObjectStore, headers: SlotHeaders, clock: Clock, pace: Pace, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.window = pace.window
        self.most_unreleased = MOST_SLOTS
        self._store, self._headers, self._clock, self._sleep = store, headers, clock, sleep
        self._broker = headers.broker
        self._pace = pace
        self._pacer = Pacer(pace, clock.monotonic_s())
        self._writer = SlotWriter(store, clock, sleep, self._pacer.budget)
        self._under_way: deque[_Slot] = deque()
        self._room = asyncio.Event()  # set by whatever lets a waiting pace() go on
        self._next = 0
        self._acknowledged = 0  # all slots below are
        self._released = 0  # as the next slot says
        self._commits = 0  # as the next slot says
        self._stated = 0  # as an acknowledged slot says
        self._oldest = 0  # all slots below are deleted
        self._sizes: deque[tuple[int, int]] = deque()
        self._unreleased_bytes = 0
        self._is_at_rest = True  # nothing was appended since the last empty slot
        self._rest: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._closed = False

    @property
    def unreleased_bytes(self) -> int:
        return self._unreleased_bytes

    @property
    def budget(self) -> PutBudget:
        """Returns the budget, which has counted the puts: of commits, of empty slots, repeated and hedged ones."""
        return self._pacer.budget

    async def append(self, frames: Sequence[Frame]) -> int:
        return await asyncio.shield(self.begin(frames))

    def begin(self, frames: Sequence[Frame], commits: int = 0) -> asyncio.Future[int]:
        """Begins as `append` does; the future returns the slot's number. `commits` is what the slot's header says if it
        holds several."""
        check_frames(frames)
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        if self._error is not None:
            raise self._error
        assert self._has_room, "one append at a time for each place in the window"
        self._commits = commits
        self._is_at_rest = False
        if self._rest is not None:
            self._rest.cancel()
        slot = self._put(frames)
        self._pacer.record_start(self._clock.monotonic_s(), self._needed, is_full=not self._has_room)
        return slot.done

    async def discard_failed(self) -> None:
        pass  # an append that fails ends the journal

    async def pace(self, is_full: asyncio.Event) -> None:
        while not self._has_room and not self._closed and self._error is None:
            self._room.clear()
            await self._room.wait()
        wait_s = self._pacer.wait_s(self._clock.monotonic_s(), self._needed)
        if wait_s:
            await sleep_unless(is_full, self._sleep, wait_s)

    def release(self, below: int) -> None:
        assert below <= self._acknowledged, "only what is durable can be in a chain"
        while self._sizes and self._sizes[0][0] < below:
            self._unreleased_bytes -= self._sizes.popleft()[1]
        self._released = max(self._released, below)
        self._rest_if_idle()

    def release_all(self) -> None:
        """Releases all slots that were acknowledged."""
        self.release(self._acknowledged)

    async def close(self) -> None:
        self._closed = True
        self._room.set()
        tasks: list[asyncio.Task[Any]] = [slot.put for slot in self._under_way]
        tasks += [task for task in (self._rest, self._cleaning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refuse(JournalUnavailable("the journal was closed; it is unknown whether the commit is durable"))

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Does as Journal says. No fence stays: this broker has closed and can acknowledge nothing more, and a fence is
        for nothing else. A put that still lands leaves an object that nobody needs. A journal without a put has no
        folder, and nothing to say. Raises Fenced, StoreUnavailable."""
        assert self._closed
        if self._error is not None:
            raise self._error
        assert self._released == self._acknowledged, "what is needed stays"
        if not self._next:
            return
        await put_done(self._store, self._broker, stated)
        for numbers in batches(await list_slots(self._store, self._broker)):
            reach("slot.delete")
            await delete_slots(self._store, self._broker, numbers)

    @property
    def _needed(self) -> int:
        """Returns how many slots a recovery would have to read."""
        return self._next - self._released

    @property
    def _has_room(self) -> bool:
        return sum(not slot.is_rest for slot in self._under_way) < self.window

    def _put(self, frames: Sequence[Frame], *, is_rest: bool = False) -> _Slot:
        """Begins to put a slot by rules 1 and 2."""
        number, self._next = self._next, self._next + 1
        header = self._headers.make(SlotKind.DATA, number, self._released, self._acknowledged, self._commits)
        slot = _Slot(header, is_rest, self._writer.begin(header, frames))
        self._under_way.append(slot)
        slot.put.add_done_callback(self._end_put)
        return slot

    def _end_put(self, put: asyncio.Task[int]) -> None:
        """Acknowledges or refuses slots by rules 3 and 4."""
        if self._closed or put.cancelled():
            return
        self._error = self._error or put.exception()
        while self._under_way and self._under_way[0].put.done():
            try:
                self._acknowledge(self._under_way[0])
            except Exception as error:
                self._refuse(error)
            else:
                self._under_way.popleft()
        self._room.set()

    def _acknowledge(self, slot: _Slot) -> None:
        """Raises the error of the put, and InvariantViolated; then the slot is not acknowledged."""
        number, size = slot.header.number, slot.put.result()
        done, stated, released = self._acknowledged, self._stated, slot.header.released
        require(number == done, "slot %d is durable, and slot %d is to be acknowledged next", number, done)
        require(stated <= released <= number, "slot %d releases those below %d, after %d", number, released, stated)
        self._acknowledged = number + 1
        self._stated = slot.header.released
        if slot.is_rest:
            self._released = number + 1
            self._is_at_rest = self._next == number + 1
        else:
            self._sizes.append((number, size))
            self._unreleased_bytes += size
        slot.done.set_result(number)
        if self._oldest < self._stated and (self._cleaning is None or self._cleaning.done()):
            self._cleaning = asyncio.create_task(self._clean())

    def _refuse(self, error: BaseException) -> None:
        """Refuses all slots under way: none of them is acknowledged."""
        while self._under_way:
            slot = self._under_way.popleft()
            slot.put.cancel()
            fail(slot.done, error)
            if not slot.is_rest:
                self._error = self._error or error

    def _rest_if_idle(self) -> None:
        is_idle = self._released == self._next and not self._is_at_rest
        if is_idle and not self._closed and (self._rest is None or self._rest.done()):
            self._rest = asyncio.create_task(self._rest_soon())

    async def _rest_soon(self) -> None:
        """Puts the empty slot of rule 6 after a pause."""
        await self._sleep(self._pace.idle_s)
        if self._error is None:
            self._put((), is_rest=True)

    async def _clean(self) -> None:
        """Deletes slots by rule 5. A deletion that fails is tried again when a later slot is acknowledged."""
        try:
            while self._oldest < self._stated:
                end = min(self._oldest + BATCH, self._stated)
                reach("slot.delete")
                await delete_slots(self._store, self._broker, range(self._oldest, end))
                self._oldest = end
        except StoreUnavailable as error:
            logger.warning(
                "objects of journal %s could not be deleted (%s); trying again later",
                journal_folder(self._broker),
                error,
            )
