"""Receipts of an async producer: awaited, settled by its tasks."""

import asyncio
from collections.abc import Generator
from typing import Any

from seaweedq.client.core.producing.delivery import Outcome, shown
from seaweedq.client.core.protocol.wire import Published


class AsyncDelivery:
    """The outcome of one request of a producer, like a future. Awaiting it is `result`."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._outcome = Outcome()

    def settle(self, outcome: Outcome) -> None:
        """States the outcome."""
        self._outcome = outcome
        self._done.set()

    async def outcome(self) -> Outcome:
        """Waits for the outcome and returns it."""
        await self._done.wait()
        return self._outcome

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._done.is_set()

    def known(self) -> Outcome | None:
        """Returns the outcome; None while it is not known."""
        return self._outcome if self.done() else None

    async def exception(self) -> Exception | None:
        """Returns the error if any of the messages failed, else None."""
        return (await self.outcome()).error

    async def result(self) -> Published:
        """Returns the broker's answer; raises the delivery's error."""
        outcome = await self.outcome()
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published

    def __await__(self) -> Generator[Any, None, Published]:
        return self.result().__await__()


class AsyncReceipt:
    """The outcome of one message, like a future whose result is the message's id. Awaiting it is `result`."""

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: AsyncDelivery, index: int) -> None:
        self._delivery, self._index = delivery, index

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._delivery.done()

    async def exception(self) -> Exception | None:
        """Returns the message's error if it failed, else None."""
        return (await self._delivery.outcome()).error_of(self._index)

    async def result(self) -> str:
        """Returns the id `{segment}-{offset}`; raises the message's error."""
        return (await self._delivery.outcome()).id_of(self._index)

    def __await__(self) -> Generator[Any, None, str]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return shown("AsyncReceipt", self._delivery.known(), self._index)
