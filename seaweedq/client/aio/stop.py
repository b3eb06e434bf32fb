"""How tasks run the effects of steps that wait (pauses, blocking calls, chunks of a body, parallel steps), and how they
stop.

Tasks are stopped by their cancellation, at any await. So no AsyncStop is ever set; the sync shell's are.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from seaweedq.client.core.effects import Steps, Together
from seaweedq.client.files import Slice

Stopped = asyncio.CancelledError


class AsyncStop:
    """A flag that is never set."""

    def check(self) -> None:
        """Does nothing."""

    async def pause(self, seconds: float) -> None:
        """Sleeps."""
        await asyncio.sleep(seconds)

    async def run_blocking(self, run: Callable[[], Any]) -> Any:
        """Runs blocking work in a thread."""
        return await asyncio.to_thread(run)

    async def chunks(self, body: Slice) -> AsyncIterator[bytes]:
        """Yields the chunks of a body."""
        chunks = body.chunks()
        while chunk := await asyncio.to_thread(next, chunks, b""):
            yield chunk

    async def together(self, run: Callable[[Steps[None]], Coroutine[Any, Any, None]], effect: Together) -> None:
        """Runs steps concurrently. The first error cancels the other steps."""
        todo = iter(effect.steps)

        async def run_next() -> None:
            for steps in todo:
                await run(steps)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(effect.most):
                    group.create_task(run_next())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


NEVER = AsyncStop()
