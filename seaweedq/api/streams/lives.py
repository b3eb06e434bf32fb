"""The life of a stream, of a topic or of a subscription: it sends parts until its client goes, what it reads is
deleted, or the broker leaves.

A stream that ends says why (`bye`). One whose client does not take what was sent gets nothing more when the broker
leaves: its connection is cut.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from seaweedq.api.asgi.http import ClientGone, Scope, connection_of
from seaweedq.api.asgi.problems import unexpected
from seaweedq.api.streams.outlets import Outlet
from seaweedq.errors import NotReady, SeaweedqError

COMMENT_S = 15.0  # between two signs of life
BYE_S = 1.0  # for a stream to end by itself
T = TypeVar("T")


@dataclass
class Life:
    """One stream, from its begin to its last word. `ended` is set once the broker leaves."""

    ended: asyncio.Event
    scope: Scope
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
                if not running.done() and (connection := connection_of(self.scope)):
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
