"""A journal in memory, for tests: it keeps what a real one keeps and loses everything with its process."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from seaweedq.errors import JournalUnavailable
from seaweedq.segments.commits import Commit
from seaweedq.segments.frames import Frame, pack

Hook = Callable[[Sequence[Frame]], Awaitable[None]]


async def _no_fault(frames: Sequence[Frame]) -> None:
    pass


class MemoryJournal:
    """The twin of the real journals. `hook` runs ahead of each commit; what it raises, append raises."""

    window = 1

    def __init__(self, hook: Hook = _no_fault) -> None:
        self.hook = hook
        self.commits: deque[Commit] = deque()
        self.unreleased_bytes = 0
        self._next = 0
        self._appending = self._closed = False

    async def append(self, frames: Sequence[Frame]) -> int:
        assert not self._appending, "one append at a time"
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        self._appending = True
        try:
            await self.hook(frames)
        finally:
            self._appending = False
        number, self._next = self._next, self._next + 1
        self.commits.append(Commit(number, tuple(frames)))
        self.unreleased_bytes += _size(frames)
        return number

    async def pace(self) -> None:
        pass

    def release(self, below: int) -> None:
        while self.commits and self.commits[0].number < below:
            self.unreleased_bytes -= _size(self.commits.popleft().frames)

    async def close(self) -> None:
        self._closed = True

    async def remove(self) -> None:
        assert self._closed
        self.commits.clear()


def _size(frames: Sequence[Frame]) -> int:
    index, body = pack(frames)
    return len(index) + sum(memoryview(part).nbytes for part in body)
