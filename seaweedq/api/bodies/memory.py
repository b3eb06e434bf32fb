"""The memory of bodies: fair shares of it among principals, and what decoders may make of them.

The bodies of one principal's requests hold at most half of what is free for all of them. Free is the budget less what
others hold, so that the first principal leaves as much as it takes, and each further one half of what is left. It holds
if more than one principal is there, or requests are anonymous as well; all of those together count as one. The first
body of a principal is never refused, nor are small ones, which hold little. What a body decodes to counts as well, and
what its decoder may make meanwhile: a few hundred bytes become 16 MiB.

Tiny messages become 20 times as large while they are decoded, and a compressed body any number of times. Decoders
reserve what they may make, together half of the budget, and for each caller its fair share: small publishes must find
room beside them. A request without room waits for those that decode now. While nobody decodes, a request that is its
caller's only one goes ahead: else a large body could never be decoded while tails fill the budget. Any other one
without a fair share is refused, since its caller's requests would wait for one another.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from seaweedq.broker.log import Budget
from seaweedq.codec import bodies
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.errors import Overloaded
from seaweedq.segments.ipc_bounds import may_expand

SMALL_BYTES = 64 * 1024


def _one() -> int:
    return 1


class FairMemory:
    """The bytes that principals hold, by their keys. `parties` returns how many principals there are."""

    def __init__(self, budget: Budget, parties: Callable[[], int] = _one) -> None:
        self._budget = budget
        self._parties = parties
        self._held: dict[str, int] = {}

    def held(self, key: str | None) -> int:
        """Returns how many bytes a principal's requests hold."""
        return self._held.get(key, 0) if key is not None else 0

    def has_room(self, key: str | None, size: int) -> bool:
        """Returns whether a principal's requests may hold so many bytes more. None is a request without a share."""
        held = self.held(key)
        if not held or self._parties() < 2:
            return True
        return 2 * (held + size) <= held + self._budget.limit_bytes - self._budget.held

    def take(self, key: str, size: int) -> None:
        """Counts bytes of a body, before the budget does. Raises Overloaded."""
        if not self.has_room(key, size):
            raise self.refusal(key, size)
        self.add(key, size)

    def refusal(self, key: str | None, size: int) -> Overloaded:
        """Returns the error for bytes without room."""
        return Overloaded(
            f"requests of the same principal hold {self.held(key)} bytes, and {size} more would be over half of what "
            f"is free of memory_budget_bytes={self._budget.limit_bytes}; try again",
            budget_bytes=self._budget.limit_bytes,
        )

    def add(self, key: str | None, size: int) -> None:
        """Counts bytes for which there is room."""
        if key is not None and size:
            self._held[key] = self._held.get(key, 0) + size

    def release(self, key: str | None, size: int) -> None:
        """Forgets bytes that are held no more."""
        if key is None or not size:
            return
        left = self._held[key] - size
        if left:
            self._held[key] = left
        else:
            del self._held[key]

    def __len__(self) -> int:
        return len(self._held)


T = TypeVar("T")
SAME_SIZE = 5  # copies of the body that a decoder may hold
MEMBER_BYTES = 200  # of a member of a JSON object, as Python holds it
LINE_BYTES = 180  # of a bare value
ARROW_SIZE = 20  # of short strings: five bytes in Arrow become columns and texts
SMALL_JSON_BYTES = 16 * 1024
WINDOW_BYTES = 4 * 1024 * 1024  # of a decompressor, beside what it has made


def needed(media: str, content: bytes, bare: bool, limit_bytes: int) -> int:
    """Returns how many bytes the decoding of a body may need: an estimate, measured for the worst that clients can
    send. `limit_bytes` bounds what Arrow data may be, decompressed."""
    if media == bodies.ARROW:
        if may_expand(pa.py_buffer(content)):
            return SAME_SIZE * limit_bytes
        return ARROW_SIZE * len(content)
    if media not in (bodies.JSON, bodies.NDJSON):
        return SAME_SIZE * len(content)
    small = LINE_BYTES * content.count(b"\n") if bare else MEMBER_BYTES * content.count(b":")
    return SAME_SIZE * len(content) + small


def needed_by_json(content: bytes) -> int:
    """Returns how many bytes the decoding of a request other than messages may need; 0 for a small one."""
    if len(content) < SMALL_JSON_BYTES:
        return 0
    return SAME_SIZE * len(content) + MEMBER_BYTES * (content.count(b":") + content.count(b","))


def needed_to_decompress(limit_bytes: int) -> int:
    """Returns how many bytes the decoding of a compressed body may need that becomes at most `limit_bytes`: a window of
    zstd, which the body itself chooses, holds all of them once more."""
    return 2 * limit_bytes + WINDOW_BYTES


class DecodingMemory:
    """The memory that decoders hold of the budget, and of their callers' shares."""

    def __init__(self, budget: Budget, fair: FairMemory) -> None:
        self._budget = budget
        self._fair = fair
        self._changed = asyncio.Event()

    async def run(self, caller: str | None, own: int, size: int, work: Callable[..., T], *arguments: object) -> T:
        """Calls `work` in a thread as soon as there is room for `size` bytes, and returns its result. The request holds
        `own` bytes already; without a `caller` it has no share. Raises Overloaded.

        They are held until the thread has ended, also where nobody waits any more, since a thread cannot be cancelled.
        Clients that go while their bodies are decoded, and come again, would get memory without bound.
        """
        while not self._may_begin(caller, own, size):
            if not self._budget.decoding:
                raise self._fair.refusal(caller, size)
            self._changed.clear()
            await self._changed.wait()
        return await self._run(caller, size, work, *arguments)

    async def run_at_once(self, size: int, work: Callable[..., T], *arguments: object) -> T:
        """As `run`, without waiting: for what has to be done with a request that nobody can refuse any more."""
        return await self._run(None, size, work, *arguments)

    async def _run(self, caller: str | None, size: int, work: Callable[..., T], *arguments: object) -> T:
        call = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._budget.decoding += size
        self._fair.add(caller, size)

        def release(_: Any = None) -> None:
            """Releases the memory, once the thread has ended and what its error held is free."""
            self._budget.decoding -= size
            self._fair.release(caller, size)
            self._changed.set()

        try:
            return await asyncio.shield(call)
        finally:
            call.add_done_callback(mark_retrieved)
            if call.done():
                release()  # now: the request goes on without a pause, and counts what it keeps
            else:
                call.add_done_callback(release)
            del call  # an error refers to this frame, and the call to the error

    def _may_begin(self, caller: str | None, own: int, size: int) -> bool:
        has_share = self._fair.has_room(caller, size)
        if self._budget.decoding:
            return has_share and self._fits(size)
        return has_share or self._fair.held(caller) <= own

    def _fits(self, size: int) -> bool:
        return self._budget.decoding + size <= self._budget.limit_bytes // 2 and self._budget.fits(size)
