"""Journals in memory, for tests: they keep what real ones keep, and lose everything with their process."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence

from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import Fenced, JournalUnavailable
from seaweedq.journal.interface import NOTHING_SEEN, Claim, NeededJournal, Seen, highest
from seaweedq.segments.frames import Commit, Frame, check_frames, pack, terms_of
from seaweedq.segments.terms import Term

KIND = "memory"
Hook = Callable[[Sequence[Frame]], Awaitable[None]]


async def _no_fault(frames: Sequence[Frame]) -> None:
    pass


class MemoryJournal:
    """The twin of the real journals. `hook` runs before each commit; append raises what it raises."""

    window = 1
    most_unreleased = 0
    mirrors: tuple[str, ...] = ()
    budget = None

    def __init__(self, hook: Hook = _no_fault) -> None:
        self.hook = hook
        self.commits: deque[Commit] = deque()
        self.unreleased_bytes = 0
        self.is_fenced = False
        self._next = 0
        self._appending = self._closed = False

    async def append(self, frames: Sequence[Frame]) -> int:
        assert not self._appending, "one append at a time"
        check_frames(frames)
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        self._appending = True
        try:
            await self.hook(frames)
        finally:
            self._appending = False
        if self.is_fenced:
            raise Fenced("a recovery has fenced the journal")
        number, self._next = self._next, self._next + 1
        self.commits.append(Commit(number, tuple(frames)))
        self.unreleased_bytes += _size(frames)
        return number

    async def discard_failed(self) -> None:
        pass

    async def pace(self, is_full: asyncio.Event) -> None:
        pass

    def release(self, below: int) -> None:
        while self.commits and self.commits[0].number < below:
            self.unreleased_bytes -= _size(self.commits.popleft().frames)

    async def close(self) -> None:
        self._closed = True

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        assert self._closed
        self.commits.clear()


class DeadMemoryJournal:
    """A memory journal whose broker is dead, or believed so."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def fence(self) -> None:
        self._journal.is_fenced = True

    async def look(self) -> None:
        pass

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        assert self._journal.is_fenced
        for commit in tuple(self._journal.commits):
            await claim(commit.size_bytes)
            yield commit

    async def terms(self) -> dict[tuple[str, int], Term]:
        return highest(terms_of(pack(commit.frames)[0]) for commit in self._journal.commits)

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        assert self._journal.is_fenced
        self._journal.commits.clear()

    async def close(self) -> None:
        pass


class MemoryJournals:
    """The journals of brokers in one process, by broker in `journals`, which they share; `place` is the home's id."""

    def __init__(self, journals: dict[str, MemoryJournal], place: str) -> None:
        self._journals = journals
        self._place = place

    def describe(self, broker: str) -> JournalRecord:
        return JournalRecord(KIND, self._place)

    def first_keys(self, broker: str) -> Sequence[Put]:
        return ()

    def create(self, broker: str) -> MemoryJournal:
        assert broker not in self._journals
        self._journals[broker] = MemoryJournal()
        return self._journals[broker]

    def is_exclusive(self, record: JournalRecord) -> bool:
        return False

    def open_dead(self, broker: str, record: JournalRecord) -> DeadMemoryJournal:
        """Opens an empty journal for a broker that died before it had one."""
        return DeadMemoryJournal(self._journals.setdefault(broker, MemoryJournal()))

    async def needed(self) -> list[NeededJournal]:
        return [NeededJournal(broker, self.describe(broker)) for broker, one in self._journals.items() if one.commits]

    async def is_done(self, broker: str) -> bool:
        return False

    async def stated(self) -> Seen:
        return NOTHING_SEEN

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return 0


def _size(frames: Sequence[Frame]) -> int:
    index, _, size = pack(frames)
    return len(index) + size
