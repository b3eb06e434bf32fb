"""The async subscriber: an iterator that pulls, and a task that sends the answers."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from seaweedq.client.core.effects import Steps
from seaweedq.client.core.message import Item, Origin
from seaweedq.client.core.pulling import ACK_BATCH, ACK_LINGER_S, Pulling, PullResult, ids_of

T = TypeVar("T")


class AsyncAcker:
    """Collects acks and other answers to messages, and sends them in batches in the background: when ACK_BATCH answers
    are waiting, after ACK_LINGER_S seconds, or when asked to hurry."""

    def __init__(self, send: Callable[[list[Item]], Coroutine[Any, Any, object]]) -> None:
        self._send = send
        self._pending: list[Item] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def answer(self, item: Item) -> None:
        """Adds an answer. On the event loop only."""
        self._pending.append(item)
        if len(self._pending) >= ACK_BATCH:
            self._hurry.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="acker")

    def hurry(self) -> None:
        """Sends the waiting answers immediately. Raises the error of an earlier ack or nack."""
        self._hurry.set()
        error, self._error = self._error, None
        if error:
            raise error

    async def flush(self) -> None:
        """Returns once brokers have accepted all acks and nacks so far. Raises the error of a failed ack or nack."""
        while self._task is not None:
            self._hurry.set()
            await asyncio.shield(self._task)
        self.hurry()

    def is_idle(self) -> bool:
        """Returns whether every ack and nack so far was accepted or has failed."""
        return self._task is None

    async def _send_all(self) -> None:
        while self._pending:
            try:
                async with asyncio.timeout(ACK_LINGER_S):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            items, self._pending = self._pending, []
            try:
                await self._send(items)
            except Exception as error:  # the iteration raises it
                self._error = self._error or error
        self._task = None


class AsyncDeliveries(Generic[T]):
    """Iterates over the messages or batches of a subscription; `made` converts each item. If a wait is cancelled, its
    pull continues, and the next call returns the messages of this pull. `aclose` sends the collected acks and nacks,
    waits until they are accepted, and gives back the messages that were not yielded. A dropped iterator stops
    pulling."""

    def __init__(
        self,
        pulling: Pulling,
        accept: str,
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        acker: AsyncAcker,
        made: Callable[[Any, Origin], T],
    ) -> None:
        self._pulling, self._accept, self._run, self._acker, self._made = pulling, accept, run, acker, made
        self._waiting: deque[Any] = deque()
        self._origin = Origin(acker.answer)
        self._pull: asyncio.Task[PullResult | None] | None = None
        self._begun = self._ended = False

    def __aiter__(self) -> "AsyncDeliveries[T]":
        return self

    async def __anext__(self) -> T:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            try:
                await self._fill()
            except Exception:
                await self.aclose()
                raise
        return self._made(self._waiting.popleft(), self._origin)

    async def aclose(self) -> None:
        """Ends the iteration. Raises the error of a failed ack or nack."""
        self._ended = True
        lease, ids = self._origin.lease, ids_of(self._waiting)
        self._waiting.clear()
        if self._pull is not None:
            self._pull.cancel()
            await asyncio.wait([self._pull])
            if not self._pull.cancelled() and not self._pull.exception() and (pulled := self._pull.result()):
                lease, ids = pulled.lease, None  # of which nobody has heard
        try:
            await self._acker.flush()
        finally:
            await self._run(self._pulling.give_back(lease, ids))
            await self._run(self._pulling.give_back_pull())

    async def _fill(self) -> None:
        """Waits for a pull, which is not cancelled with the caller."""
        if self._pull is None:
            if not self._begun:
                await self._run(self._pulling.ensure())
                self._begun = True
                if self._ended or self._pull is not None:  # another task was faster
                    return
            self._acker.hurry()
            self._pull = asyncio.create_task(_pull(self._pulling, self._accept, self._run, self._acker), name="pull")
        pull = self._pull
        await asyncio.wait([pull])
        if self._pull is pull and not self._ended:  # else another task has its messages, or has ended all
            self._pull = None
            pulled = pull.result()
            if pulled is None:
                await self.aclose()
            else:
                self._waiting, self._origin = deque(pulled.items), Origin(self._acker.answer, pulled.lease)

    def __del__(self) -> None:
        if self._pull is not None and not self._pull.done() and not self._pull.get_loop().is_closed():
            self._pull.cancel()


async def _pull(
    pulling: Pulling, accept: str, run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]], acker: AsyncAcker
) -> PullResult | None:
    """Returns the result of the next pull, or None at the end. Refers to no AsyncDeliveries, which may be dropped."""
    is_idle = acker.is_idle()
    pulled: PullResult | None = await run(pulling.pull(accept=accept))
    if pulled is None and not is_idle:
        await acker.flush()
        pulled = await run(pulling.pull_now(accept))
    return pulled
