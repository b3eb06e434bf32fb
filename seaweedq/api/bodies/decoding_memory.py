"""Memory for decoding bodies, and for the ids in their answers: tiny messages become 20 times as large meanwhile.

Decoders reserve what they may make, together half of the budget: small publishes must find room beside them. Who
finds no room waits for those that decode now. Where nobody decodes it goes ahead: else a large body could never be
decoded while tails fill the budget.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.codec import bodies
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.segments.ipc_bounds import may_expand

T = TypeVar("T")
SAME_SIZE = 5  # copies of the body that a decoder may hold
MEMBER_BYTES = 200  # of a member of a JSON object, as Python holds it
LINE_BYTES = 180  # of a bare value
ARROW_SIZE = 20  # of short strings: five bytes in Arrow become columns and texts
SMALL_BYTES = 16 * 1024


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
    if len(content) < SMALL_BYTES:
        return 0
    return SAME_SIZE * len(content) + MEMBER_BYTES * (content.count(b":") + content.count(b","))


class DecodingMemory:
    """The memory that decoders hold of the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._changed = asyncio.Event()

    async def run(self, size: int, work: Callable[..., T], *arguments: object) -> T:
        """Calls `work` in a thread as soon as there is room for `size` bytes, and returns its result.

        They are held until the thread has ended, also where nobody waits any more, since a thread cannot be cancelled.
        Clients that go while their bodies are decoded, and come again, would get memory without bound.
        """
        while self._budget.decoding and not self._fits(size):
            self._changed.clear()
            await self._changed.wait()
        return await self.run_at_once(size, work, *arguments)

    async def run_at_once(self, size: int, work: Callable[..., T], *arguments: object) -> T:
        """As `run`, without waiting: for what has to be done with a request that nobody can refuse any more."""
        call = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._budget.decoding += size
        call.add_done_callback(lambda _: self._release(size))
        call.add_done_callback(mark_retrieved)
        return await asyncio.shield(call)

    def _release(self, size: int) -> None:
        self._budget.decoding -= size
        self._changed.set()

    def _fits(self, size: int) -> bool:
        return self._budget.decoding + size <= self._budget.limit_bytes // 2 and self._budget.fits(size)
