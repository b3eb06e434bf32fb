"""One stream to a client, of a topic or of a subscription: it sends parts until its client goes, what it reads is
deleted, or the broker leaves.

A stream makes nothing for a client that does not take it: it waits until the socket has taken what was sent before
(`drained`), and until there is room among the answers that nobody takes (api/bodies/unread_answers). So a slow client
costs one batch, which that module counts, and ends like every client that takes no byte for answer_timeout_s.

A stream that ends says why (`bye`). One whose client does not take what was sent gets nothing more when the broker
leaves: its connection is cut.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from seaweedq.api.bodies.unread_answers import UnreadAnswers
from seaweedq.api.problems import unexpected
from seaweedq.api.request import ClientGone, Request
from seaweedq.api.streams.chunks import CHUNK_BYTES, Chunk
from seaweedq.broker.streams import Batch
from seaweedq.clock import Clock
from seaweedq.errors import NotReady, SeaweedqError

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

    async def wait(self, request: Request, size: int, until_s: float) -> bool:
        """Returns once the client has taken what was sent before, and there is room for so many bytes; False where
        there is no room by then (monotonic seconds)."""
        connection = request.connection
        while True:
            if connection:
                await connection.drained()
            if self.has(size):
                return True
            if self._clock.monotonic_s() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)


COMMENT_S = 15.0  # between two signs of life
BYE_S = 1.0  # for a stream to end by itself
T = TypeVar("T")


@dataclass
class Life:
    """One stream, from its begin to its last word. `ended` is set once the broker leaves."""

    ended: asyncio.Event
    request: Request
    outlet: Outlet
    _interruptible: asyncio.Timeout | None = None

    async def live(self, step: Callable[[], Awaitable[None]], goes: Coroutine[Any, Any, None]) -> None:
        """Repeats `step` until the stream ends, or `goes` says that its client has gone."""
        running = asyncio.create_task(self._run(step))
        gone = asyncio.create_task(goes)
        leaving = asyncio.create_task(self.ended.wait())
        try:
            await asyncio.wait({running, gone, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not (running.done() or gone.done()):
                self._interrupt()
                await asyncio.wait({running, gone}, timeout=BYE_S, return_when=asyncio.FIRST_COMPLETED)
                if not running.done() and (connection := self.request.connection):
                    connection.abort()
                    await asyncio.wait({gone}, timeout=BYE_S)
            if running.done():
                running.result()
        finally:
            for task in (running, gone, leaving):
                task.cancel()

    async def unless_ended(self, work: Awaitable[T]) -> T | None:
        """Returns the result of `work`, which a step of `live` awaits; None where the broker leaves before, then it is
        cancelled. It makes no task: each message of each stream comes through here."""
        interruptible = asyncio.timeout(None)
        try:
            async with interruptible:
                self._interruptible = interruptible
                return await work
        except TimeoutError:
            if not interruptible.expired():
                raise
            return None
        finally:
            self._interruptible = None

    def _interrupt(self) -> None:
        if self._interruptible:
            self._interruptible.reschedule(asyncio.get_running_loop().time())

    async def _run(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            while not self.ended.is_set():
                await step()
            raise NotReady("the broker is leaving; connect again")
        except ClientGone:
            return
        except SeaweedqError as error:
            await self.outlet.bye(error)
        except Exception as error:
            unexpected(error)  # logs it
            await self.outlet.bye(SeaweedqError("the broker met an unexpected error; its log has the details"))
