"""The async subscriber: an iterator that pulls, and a task that sends the acks."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from seaweedq.client.core.effects import Steps
from seaweedq.client.core.message import AsyncMessage, Make
from seaweedq.client.core.pulling import ACK_BATCH, ACK_LINGER_S, Pulling
from seaweedq.client.core.wire import WireMessage


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


class AsyncMessages:
    """The messages of a subscription. A wait that is cancelled ends nothing: the pull goes on, and the next call gets
    what it brings. Ending it sends the acks and waits for them; it pulls no more once nobody refers to it."""

    def __init__(
        self,
        pulling: Pulling,
        begin: Callable[[], Steps[Any]],
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        acker: AsyncAcker,
        message: Make[AsyncMessage],
    ) -> None:
        self._pulling, self._begin, self._run, self._acker, self._message = pulling, begin, run, acker, message
        self._wires: deque[WireMessage] = deque()
        self._pull: asyncio.Task[list[WireMessage] | None] | None = None
        self._begun = self._ended = False

    def __aiter__(self) -> "AsyncMessages":
        return self

    async def __anext__(self) -> AsyncMessage:
        while not self._wires:
            if self._ended:
                raise StopAsyncIteration
            try:
                await self._fill()
            except Exception:
                await self.aclose()
                raise
        return self._message(self._wires.popleft(), self._acker.ack)

    async def aclose(self) -> None:
        """Ends it; raises the error of an ack that failed."""
        self._ended = True
        self._wires.clear()
        if self._pull is not None:
            self._pull.cancel()
            await asyncio.wait([self._pull])
        await self._acker.flush()

    async def _fill(self) -> None:
        """Waits for a pull, which is not cancelled with the caller."""
        if self._pull is None:
            if not self._begun:
                await self._run(self._begin())
                self._begun = True
                if self._ended or self._pull is not None:  # another task was faster
                    return
            self._acker.hurry()
            self._pull = asyncio.create_task(self._run(self._pulling.pull()), name="pull")
        pull = self._pull
        await asyncio.wait([pull])
        if self._pull is pull and not self._ended:  # else another task has taken what it brought, or has ended all
            self._pull = None
            wires = pull.result()
            if wires is None:
                await self.aclose()
            else:
                self._wires += wires

    def __del__(self) -> None:
        if self._pull is not None and not self._pull.done() and not self._pull.get_loop().is_closed():
            self._pull.cancel()
