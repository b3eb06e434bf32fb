"""The way of one answer out: large ones are let through only where there is memory for those that nobody takes."""

from collections.abc import Callable, MutableMapping
from typing import Any

from seaweedq.api.access.rates import Meter
from seaweedq.api.bodies.unread_answers import LARGE_BYTES, UnreadAnswers
from seaweedq.api.problems import problem
from seaweedq.api.request import Answer, Send, send, start_of

CLOSING = (b"connection", b"close")


def end_connection(start: MutableMapping[str, Any]) -> None:
    """Makes an answer, by its first message, the last one on its connection."""
    headers = list(start.get("headers", ()))
    if CLOSING not in headers:
        start["headers"] = [*headers, CLOSING]


class Outgoing:
    """Sends the messages of one answer. Its start waits for the first bytes, since a large answer for which there is no
    room becomes a 503. `is_last` tells then whether the answer ends its connection: it may have been asked for before
    the broker's stop began. `begun` says that something was sent, and `status` which status. A
    `meter` counts the bytes of the body behind what was sent."""

    __slots__ = ("_dropped", "_is_last", "_out", "_start", "_unread", "begun", "meter", "status")

    def __init__(self, out: Send, unread: UnreadAnswers, is_last: Callable[[], bool] = lambda: False) -> None:
        self._out = out
        self._unread = unread
        self._is_last = is_last
        self._start: MutableMapping[str, Any] | None = None
        self._dropped = False
        self.begun = False
        self.status = 0
        self.meter: Meter | None = None

    def pass_through(self, wrap: Callable[[Send], Send]) -> None:
        """Has all that is sent from now on pass what `wrap` returns."""
        self._out = wrap(self._out)

    async def answer(self, answer: Answer) -> None:
        """Sends a whole answer."""
        self.begun = True
        answer = self._refusal(len(answer.body)) or answer
        await self._out(self._marked(start_of(answer)))
        await self._out({"type": "http.response.body", "body": answer.body})
        if self.meter is not None:
            self.meter.spend("bytes_out", len(answer.body))

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            await self._begin(message)
        if not self._dropped:
            await self._out(message)
            if self.meter is not None:
                await self.meter.sent(message)

    async def _begin(self, message: MutableMapping[str, Any]) -> None:
        start, self._start = self._start, None
        assert start is not None
        self.begun = True
        streamed = message.get("more_body", False)  # and admitted by who streams it
        if refusal := None if streamed else self._refusal(len(message.get("body", b""))):
            self._dropped, self.status = True, refusal.status
            await send(refusal, self._out)
            if self.meter is not None:
                self.meter.spend("bytes_out", len(refusal.body))
        else:
            await self._out(self._marked(start))

    def _refusal(self, size: int) -> Answer | None:
        """Returns the answer in place of one for which there is no room."""
        if size < LARGE_BYTES or self._unread.has_room(size):
            return None
        status, headers, content = problem(self._unread.refusal())
        return Answer(status, content, headers)

    def _marked(self, start: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.status = start["status"]
        if self._is_last():
            end_connection(start)
        return start
