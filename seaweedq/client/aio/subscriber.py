"""The async subscriber: an iterator that pulls, and a task that sends the acks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from seaweedq.client.core.effects import Steps
from seaweedq.client.core.message import AsyncMessage, Make
from seaweedq.client.core.pulling import ACK_BATCH, ACK_LINGER_S, Pulling


class AsyncAcker:
    """Collects acks and sends them together, in the background: at ACK_BATCH, after ACK_LINGER_S, when hurried."""

    def __init__(self, send: Callable[[list[str]], Coroutine[Any, Any, object]]) -> None:
        self._send = send
        self._pending: list[str] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def ack(self, id: str) -> None:
        """Adds an ack. On the event loop only."""
        self._pending.append(id)
        if len(self._pending) >= ACK_BATCH:
            self._hurry.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="acker")

    def hurry(self) -> None:
        """Sends the waiting acks at once; raises the error of an earlier ack."""
        self._hurry.set()
        error, self._error = self._error, None
        if error:
            raise error

    async def flush(self) -> None:
        """Returns once all acks so far are durable; raises the error of one that failed."""
        while self._task is not None:
            self._hurry.set()
            await asyncio.shield(self._task)
        self.hurry()

    async def _send_all(self) -> None:
        while self._pending:
            try:
                async with asyncio.timeout(ACK_LINGER_S):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            ids, self._pending = self._pending, []
            try:
                await self._send(ids)
            except Exception as error:  # whoever iterates learns of it
                self._error = self._error or error
        self._task = None


async def messages(
    pulling: Pulling,
    start: str | Mapping[str, Any],
    ack_deadline_s: float,
    run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
    acker: AsyncAcker,
    message: Make[AsyncMessage],
) -> AsyncIterator[AsyncMessage]:
    """Yields the messages of a subscription; ending it sends the acks and waits for them."""
    try:
        await run(pulling.ensure(start, ack_deadline_s))
        while (wires := await run(pulling.pull())) is not None:
            for wire in wires:
                yield message(wire, acker.ack)
            acker.hurry()
    finally:
        await acker.flush()
