"""A journal whose commits go to other brokers first, its mirrors, and later to slots of the store.

Owns the order of writes; docs/internals/mirrored-journal.md has what a crash leaves between two of them, and
journal/mirroring the decisions:

1. A commit goes to all mirrors of the set, to each by one call at a time, so that none overtakes another. It is
   answered once all of them have it, or once it is in an acknowledged slot with all before it.
2. The set is empty at first, and changes by one compare-and-set of the key `mirrors/{broker}`, which was written with
   the journal's own key. From the moment at which a change is sent until its outcome is known, both sets have to have a
   commit. A change whose answer is lost is sent again, under the same revision, until coordination says what became of
   it: an earlier try may land late. It lands only while the owner's own key is there: an owner that has lost its lease
   knows little of its mirrors, and must not take a living one out of the set.
3. A change is sent once the new set has all that was acknowledged. The empty set has what slots have, so all goes into
   slots before the set becomes empty.
4. Mirrors let go of commits that are *stored*: in acknowledged slots, or released.
5. A holding is dropped once a set without it is known.

Commits go into slots (journal/object_journal) while the set is empty, or is to be; when mirrors do not answer; and when
no slot has had them for `exposure_s`. An append raises Fenced, or nothing: a commit that was sent may be found.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seaweedq.checks import reach, require
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Sleep
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.coordination.records import MirrorMember, MirrorsRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import CoordinationUnavailable, Fenced, JournalUnavailable, RequestTooLarge, SeaweedqError
from seaweedq.journal.holdings import CALL_BYTES, HoldHeader, HoldState, PackedCommit, encode_hold
from seaweedq.journal.interface import NOTHING_SEEN, Mirrors, Seen
from seaweedq.journal.mirroring import KnownHolding, acknowledged_below, may_change, next_set, wanted_brokers
from seaweedq.journal.object_format import put_done
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.pacing import PutBudget
from seaweedq.segments.frames import Frame, check_frames
from seaweedq.storage.interface import ObjectStore

TICK_S = 0.05
MOST_UNRELEASED = 100_000  # commits: a recovery takes some 25 us of CPU for each frame
SLOT_BYTES = 32 * 1024 * 1024
AGAIN_S = 0.02  # behind a second call that got no answer: the first may have met a connection of an ended process
CHANGE_AGAIN_S = 0.1
CHANGE_S = 1.0  # between two changes that add a mirror
FIRST_BAN_S, LAST_BAN_S = 10.0, 300.0  # of a broker that was dropped
OPEN_BAN_S = 0.25  # of one that never had a holding: a broker that starts is known a little before it can be called
OVER_TRIES, OVER_AGAIN_S = 10, 1.0
BYTES_PER_S = 20e6  # a call of many bytes may take longer by so much
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MirrorRules:
    """The settings of mirrors: how many, with how few the set becomes empty, the seconds that a commit is in memory
    alone (None: as long as there are mirrors), and the seconds within which a mirror has to answer."""

    count: int = 2
    least: int = 1
    exposure_s: float | None = 10.0
    patience_s: float = 0.5


class _Kept(NamedTuple):
    """A commit that is not stored."""

    frames: Sequence[Frame]
    packed: PackedCommit
    at_s: float


@dataclass(eq=False, slots=True)
class _Mirror:
    """A holding as its owner knows it. `ticks` counts since its last answer, while it owes one; `told` is the number
    below which it was told to let go."""

    broker: str
    holding: str = ""
    end: int = 0
    told: int = 0
    ticks: int = 0
    owed_bytes: int = 0
    trouble: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Ban:
    """A broker that was dropped is asked again at `at_s`."""

    at_s: float
    pause_s: float


class MirroredJournal:
    """The journal of `broker`, which has none yet. `slots` makes its slots. Must be made on a running event loop."""

    def __init__(
        self,
        slots: ObjectJournal,
        store: ObjectStore,
        mirrors: Mirrors,
        broker: str,
        rules: MirrorRules,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.window = slots.window
        self.most_unreleased = MOST_UNRELEASED
        self._slots, self._store, self._mirrors, self._broker = slots, store, mirrors, broker
        self._rules, self._clock, self._sleep = rules, clock, sleep
        self._next = 0
        self._acknowledged = 0  # all commits below are
        self._stored = 0  # all commits below are in acknowledged slots, or released
        self._filled = 0  # all commits below are in slots, or on their way there, or stored
        self._kept: deque[_Kept] = deque()  # from `stored` on
        self._waiting: deque[asyncio.Future[None]] = deque()  # of commits from `acknowledged` on
        self._sizes: deque[int] = deque()  # of commits from `released` on
        self._released = 0
        self._unreleased_bytes = 0
        self._slots_begun: deque[tuple[asyncio.Future[int], int]] = deque()  # each with what is stored with it
        self._slot_ends: deque[tuple[int, int]] = deque()  # of acknowledged slots that are not released
        self._members: tuple[_Mirror, ...] = ()
        self._asked: tuple[_Mirror, ...] | None = None  # by a change whose outcome is not known
        self._joining: list[_Mirror] = []
        self._is_emptying = False  # the set is to be empty, once all is stored
        self._late_ticks = 0  # since a commit was answered, while some wait
        self._bans: dict[str, _Ban] = {}
        self._changes = 0
        self._changed_s = float("-inf")
        self._revision = 0  # of the key
        self._journal_key: Compare | None = None
        self._room, self._fill, self._never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._error: BaseException | None = None
        self._closed = False
        self._start(self._tick_often(), "ticks of the journal")
        self._start(self._fill_slots(), "slots of the journal")

    @property
    def unreleased_bytes(self) -> int:
        return self._unreleased_bytes

    @property
    def budget(self) -> PutBudget:
        return self._slots.budget

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Returns the brokers of the set."""
        return tuple(one.broker for one in self._members)

    @property
    def exposed(self) -> int:
        """Returns how many acknowledged commits are in memory alone."""
        return self._acknowledged - min(self._stored, self._acknowledged)

    async def append(self, frames: Sequence[Frame]) -> int:
        check_frames(frames)
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        if self._error is not None:
            raise self._error
        assert self._has_room, "one append at a time for each place in the window"
        number, self._next = self._next, self._next + 1
        packed = PackedCommit.pack(frames)
        self._kept.append(_Kept(frames, packed, self._clock.monotonic_s()))
        self._sizes.append(packed.size_bytes)
        self._unreleased_bytes += packed.size_bytes
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        reach("mirrors.append")
        self._wake()
        await answered
        return number

    async def discard_failed(self) -> None:
        pass  # an append that fails ends the journal

    async def pace(self, is_full: asyncio.Event) -> None:
        while not self._has_room and not self._closed and self._error is None:
            self._room.clear()
            await self._room.wait()

    def release(self, below: int) -> None:
        assert below <= self._acknowledged, "only what is durable can be in a chain"
        while self._released < below:
            self._unreleased_bytes -= self._sizes.popleft()
            self._released += 1
        released = -1
        while self._slot_ends and self._slot_ends[0][1] <= below:
            released, _ = self._slot_ends.popleft()
        if released >= 0:
            self._slots.release(released + 1)
        self._store_below(below)

    async def close(self) -> None:
        self._closed = True
        self._room.set()
        tasks = [*self._tasks, *(one.task for one in (*self._members, *self._joining) if one.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._slots.close()
        if self._waiting:
            self._refuse(JournalUnavailable("the journal was closed; what became of the commit is unknown"))

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Does as Journal says. Mirrors drop what they hold once they see that the journal was recovered, or is gone.
        Raises Fenced, Unavailable."""
        assert self._closed
        if self._error is not None:
            raise self._error
        assert self._released == self._next, "what is needed stays"
        if self._next:
            await put_done(self._store, self._broker, stated)  # there may be no slot, and coordination may go back
            self._slots.release_all()
            await self._slots.remove(stated)
        await forget_mirrors(self._mirrors, self._broker)

    @property
    def _has_room(self) -> bool:
        return self._next - self._acknowledged < self.window

    # what is acknowledged and stored

    def _wake(self) -> None:
        for one in (*self._members, *self._joining):
            one.wake.set()
        if self._filled < self._due_below():
            self._fill.set()

    def _advance(self) -> None:
        """Answers the commits that may be answered by now."""
        ends = (one.end for one in self._members)
        asked = None if self._asked is None else [one.end for one in self._asked]
        below = acknowledged_below(ends, asked, self._stored)
        require(below <= self._next, "commits below %d are acknowledged, and %d were made", below, self._next)
        while self._acknowledged < below:
            self._acknowledged += 1
            self._late_ticks = 0
            resolve(self._waiting.popleft(), None)
        self._room.set()

    def _store_below(self, below: int) -> None:
        """Records that all commits below are stored: mirrors let go of them."""
        if below <= self._stored:
            return
        while self._stored < below:
            self._kept.popleft()
            self._stored += 1
        self._filled = max(self._filled, below)
        self._advance()
        self._wake()

    def _refuse(self, error: BaseException) -> None:
        """Refuses all that waits, and all that comes, and sends nothing more."""
        self._error = self._error or error
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        while self._waiting:
            fail(self._waiting.popleft(), error)
        self._room.set()

    # slots

    def _due_below(self) -> int:
        """Returns the number below which commits are to be in slots now."""
        if not self._members or self._is_emptying or self._late_ticks * TICK_S >= self._rules.patience_s:
            return self._next
        begin = max(self._filled, self._stored)
        exposure_s = self._rules.exposure_s
        if exposure_s is None or begin == self._next:
            return 0
        return self._next if self._clock.monotonic_s() - self._kept[begin - self._stored].at_s >= exposure_s else 0

    async def _fill_slots(self) -> None:
        while True:
            while self._filled >= self._due_below():
                self._fill.clear()
                await self._fill.wait()
            await self._slots.pace(self._never)
            begin = end = max(self._filled, self._stored)
            frames: list[Frame] = []
            size = 0
            while end < self._next:
                kept = self._kept[end - self._stored]
                size += kept.packed.size_bytes
                if frames and size > SLOT_BYTES:
                    break
                frames += kept.frames
                end += 1
            if end > begin:
                self._filled = end
                slot = self._slots.begin(frames, end)
                self._slots_begun.append((slot, end))
                slot.add_done_callback(self._slot_ended)

    def _slot_ended(self, _: asyncio.Future[int]) -> None:
        while self._slots_begun and self._slots_begun[0][0].done():
            slot, below = self._slots_begun.popleft()
            if slot.cancelled() or self._closed or self._error is not None:
                return
            if error := slot.exception():
                self._refuse(error)
                return
            if below > self._released:
                self._slot_ends.append((slot.result(), below))
            else:
                self._slots.release(slot.result() + 1)
            reach("mirrors.stored")
            self._store_below(below)

    # mirrors

    async def _send(self, mirror: _Mirror) -> None:
        """Brings commits to one mirror until it is in trouble."""
        again_s = 0.0
        while True:
            first = max(mirror.end, self._stored)
            if mirror.holding and first >= self._next and mirror.told >= self._stored:
                mirror.owed_bytes = 0
                mirror.wake.clear()
                await mirror.wake.wait()
                continue
            commits: list[PackedCommit] = []
            size = 0
            for number in range(first, self._next if mirror.holding else first):
                packed = self._kept[number - self._stored].packed
                size += packed.size_bytes
                if commits and size > CALL_BYTES:
                    break
                commits.append(packed)
            stored, mirror.owed_bytes = self._stored, size
            data = encode_hold(HoldHeader(mirror.holding, stored, first), commits)
            reach("mirror.hold")
            try:
                answer = await self._mirrors.hold(mirror.broker, data, self._patience_s(size) / 2)
            except RequestTooLarge:
                mirror.trouble = f"a commit of {size} bytes is larger than its mirror_memory_bytes"
                self._plan()
                return
            except SeaweedqError as error:
                logger.debug("mirror %s has not answered: %s", mirror.broker, error)
                await self._sleep(again_s)
                again_s = AGAIN_S
                continue
            mirror.ticks, again_s = 0, 0.0
            if answer.state is HoldState.FENCED:
                raise Fenced("a recovery has fenced a mirror of this broker's journal")
            if answer.state is not HoldState.HELD:
                mirror.trouble = f"it answered {answer.state.name.lower()}"
                self._plan()
                return
            mirror.holding, mirror.told = answer.holding, max(mirror.told, stored)
            mirror.end = max(mirror.end, answer.end)
            self._advance()

    def _patience_s(self, size: int) -> float:
        return self._rules.patience_s + size / BYTES_PER_S

    async def _tick_often(self) -> None:
        while True:
            await self._sleep(TICK_S)
            self._late_ticks = self._late_ticks + 1 if self._waiting else 0
            for one in (*self._members, *self._joining):
                is_owing = not one.holding or one.end < self._next or one.told < self._stored
                one.ticks = one.ticks + 1 if is_owing else 0
                if one.ticks * TICK_S > self._patience_s(one.owed_bytes):
                    one.trouble = one.trouble or f"it has not answered for {one.ticks * TICK_S:g} s"
            self._plan()
            self._fill.set()

    def _plan(self) -> None:
        """Decides about the mirrors, and begins what is to be done."""
        if self._closed or self._error is not None:
            return
        there, now_s = self._mirrors.brokers(), self._clock.monotonic_s()
        for one in (*self._members, *self._joining):
            if one.broker not in there and not one.trouble:
                one.trouble = "it is gone"
            if one.trouble and one.task and not one.task.done():
                one.task.cancel()
        able = {
            broker: its.zone
            for broker, its in there.items()
            if its.takes_more and broker != self._broker and self._may_ask(broker, now_s)
        }
        before = [one.broker for one in (*self._members, *self._joining) if not one.trouble]
        wanted = wanted_brokers(self._broker, self._mirrors.zone, before, able, self._rules.count)
        self._let_join(wanted)
        if self._asked is not None:
            return
        chosen = next_set(
            [self._known(one, wanted) for one in self._members],
            [self._known(one, wanted) for one in self._joining],
            self._rules.count,
            self._rules.least,
            self._stored,
            self._acknowledged,
        )
        by_id = {one.holding: one for one in (*self._members, *self._joining)}
        target = tuple(by_id[holding] for holding in chosen)
        self._is_emptying = not target and bool(self._members)
        is_growth = set(target) > set(self._members)
        if set(target) == set(self._members) or (is_growth and now_s - self._changed_s < CHANGE_S):
            return
        if may_change((one.end for one in target), self._stored, self._acknowledged):
            self._asked = target
            self._start(self._change(target), "change of the mirrors")

    def _known(self, one: _Mirror, wanted: Sequence[str]) -> KnownHolding:
        return KnownHolding(one.holding, one.end, not one.trouble, one.broker in wanted)

    def _may_ask(self, broker: str, now_s: float) -> bool:
        ban = self._bans.get(broker)
        return ban is None or now_s >= ban.at_s

    def _let_join(self, wanted: Sequence[str]) -> None:
        """Opens holdings at brokers that are wanted, and lets go of those that join and are in trouble."""
        asked = self._asked or ()
        for one in [one for one in self._joining if one not in asked and (one.trouble or one.broker not in wanted)]:
            self._joining.remove(one)
            self._part(one)
        known = {one.broker for one in (*self._members, *self._joining)}
        for broker in wanted:
            if broker not in known:
                one = _Mirror(broker)
                self._joining.append(one)
                one.task = self._start(self._send(one), f"mirror {broker}")

    def _part(self, one: _Mirror) -> None:
        """Parts with a mirror that no set names."""
        if one.trouble:
            before, now_s = self._bans.get(one.broker), self._clock.monotonic_s()
            is_again = before is not None and now_s < before.at_s + LAST_BAN_S
            first_s = FIRST_BAN_S if one.holding else OPEN_BAN_S
            pause_s = max(first_s, min(2 * before.pause_s, LAST_BAN_S) if before and is_again else 0.0)
            self._bans[one.broker] = _Ban(now_s + pause_s, pause_s)
            if one.holding:
                logger.warning("broker %s is no longer a mirror of this broker's journal: %s", one.broker, one.trouble)
            else:
                logger.info(
                    "broker %s could not become a mirror of this broker's journal yet: %s", one.broker, one.trouble
                )
        if one.task:
            one.task.cancel()
        if one.holding:
            self._start(self._end_holding(one), f"end of a holding at {one.broker}")

    async def _end_holding(self, one: _Mirror) -> None:
        """Tells a mirror that its holding is over, as long as it lives."""
        data = encode_hold(HoldHeader(one.holding, is_over=True), ())
        for _ in range(OVER_TRIES):
            try:
                if one.broker in self._mirrors.brokers():
                    await self._mirrors.hold(one.broker, data, self._patience_s(0))
                return
            except SeaweedqError:
                await self._sleep(OVER_AGAIN_S)

    async def _change(self, target: tuple[_Mirror, ...]) -> None:
        """Asks for a change until its outcome is known. Raises Fenced."""
        self._changes += 1
        members = tuple(MirrorMember(one.broker, one.holding) for one in target)
        wanted = Versioned.new(MirrorsRecord("open", members, self._changes, exposure_s=self._rules.exposure_s))
        while not await self._try_change(wanted):
            await self._sleep(CHANGE_AGAIN_S)
        before, self._members, self._asked = self._members, target, None
        self._joining = [one for one in self._joining if one not in target]
        self._changed_s = self._clock.monotonic_s()
        logger.info(
            "this broker's journal is now mirrored by these brokers: %s", [one.broker for one in target] or "none"
        )
        for one in before:
            if one not in target:
                self._part(one)
        self._advance()
        self._wake()

    async def _try_change(self, wanted: Versioned[MirrorsRecord]) -> bool:
        """Returns whether the key has this record. Raises Fenced if it never will."""
        coordination, key = self._mirrors.coordination, keys.MIRRORS.key(self._broker)
        try:
            if self._journal_key is None:
                there, of_journal = await coordination.get(key), await coordination.get(keys.JOURNALS.key(self._broker))
                if there is None or of_journal is None or keys.MIRRORS.require(there).record.state != "open":
                    raise Fenced(f"the journal of broker {self._broker} was recovered by another broker")
                self._revision, self._journal_key = there.revision, Compare(of_journal.key, of_journal.revision)
            own, put = await self._own_key(), Put(key, keys.MIRRORS.encode(wanted))
            reach("mirrors.change")
            revision = await coordination.commit([Compare(key, self._revision), self._journal_key, own], [put])
            if revision is None:  # an earlier try, or a recovery, or this broker has written its own key
                there = await coordination.get(key)
                if there and there.revision == self._revision and await self._own_key() != own:
                    return False
                known = keys.MIRRORS.read(there) if there else None
                if there is None or known is None or isinstance(known, Unreadable) or known.record != wanted.record:
                    raise Fenced(
                        f"the mirrors of broker {self._broker}'s journal can no longer be changed, because another "
                        "broker has begun to recover the journal"
                    )
                revision = there.revision
            reach("mirrors.changed")
        except CoordinationUnavailable as error:
            logger.warning(
                "it is unknown whether a change of the journal's mirrors took effect (%s); asking coordination again",
                error,
            )
            return False
        self._revision = revision
        return True

    async def _own_key(self) -> Compare:
        """Returns a comparison that holds as long as this broker's lease, and this broker writes nothing into its own
        key. Reads the key: Membership.compare is behind a write whose answer was lost, and a change that fails for that
        would end the journal. Raises Fenced, CoordinationUnavailable."""
        there = await self._mirrors.coordination.get(keys.BROKERS.key(self._broker))
        if there is None:
            raise Fenced(
                f"the mirrors of broker {self._broker}'s journal can no longer be changed, because the broker's lease "
                "has ended"
            )
        return Compare(there.key, there.revision)

    # tasks

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Ends the journal if one of its tasks fails."""
        self._tasks.pop(task, None)
        if not self._closed and not task.cancelled() and (error := task.exception()):
            self._refuse(error)


async def forget_mirrors(mirrors: Mirrors, broker: str) -> None:
    """Removes the set of a journal that was recovered. Raises CoordinationUnavailable."""
    await mirrors.coordination.commit([], [Delete(keys.MIRRORS.key(broker))])
