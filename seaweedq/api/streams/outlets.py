"""The ways of a stream to its client: what both have in common.

A stream makes nothing for a client that does not take it: it waits until the socket has taken what was sent before
(`drained`), and until there is room among the answers that nobody takes (api/bodies/unread_answers). So a slow client
costs one batch, which that module counts, and ends like every client that takes no byte for answer_timeout_s.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from seaweedq.api.asgi.http import Scope, connection_of
from seaweedq.api.bodies.unread_answers import UnreadAnswers
from seaweedq.api.streams.chunks import CHUNK_BYTES, Chunk
from seaweedq.broker.streams.batches import Batch
from seaweedq.clock import Clock
from seaweedq.errors import SeaweedqError

LOOK_S = 0.5  # between two looks for room


class Outlet(Protocol):
    """Sends the parts of one stream."""

    async def begin(self, positions: str | None = None) -> None:
        """Says that the stream has begun, and where, if it has positions."""

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends messages, and the positions behind them."""

    async def leased(self, batch: Batch) -> None:
        """Sends messages of a subscription, which are leased."""

    async def keep_alive(self) -> None:
        """Sends a sign of life, if the transport has none of its own."""

    async def bye(self, error: SeaweedqError) -> None:
        """Ends the stream, and says why."""


class Room:
    """The memory for what streams send. Where there is none, one stream looks now and then, for all of them."""

    def __init__(self, unread: UnreadAnswers, clock: Clock) -> None:
        self._unread = unread
        self._clock = clock
        self._full_until_s = float("-inf")

    def has(self, size: int) -> bool:
        """Returns whether there is room now. That there is none for a large message says nothing of other ones."""
        now_s = self._clock.monotonic_s()
        if size <= CHUNK_BYTES and now_s < self._full_until_s:
            return False
        if self._unread.has_room(size):
            return True
        if size <= CHUNK_BYTES:
            self._full_until_s = now_s + LOOK_S
        return False

    async def wait(self, scope: Scope, size: int, until_s: float) -> bool:
        """Returns once the client has taken what was sent before, and there is room for so many bytes; False where
        there is no room by then (monotonic seconds)."""
        connection = connection_of(scope)
        while True:
            if connection:
                await connection.drained()
            if self.has(size):
                return True
            if self._clock.monotonic_s() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)
