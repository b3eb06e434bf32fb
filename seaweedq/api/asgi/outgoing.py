"""The way of one answer out: large ones are let through only where there is memory for those that nobody takes."""

from collections.abc import Callable, MutableMapping
from typing import Any

from seaweedq.api.asgi.http import Answer, Send, send
from seaweedq.api.asgi.problems import problem
from seaweedq.api.asgi.unread_answers import LARGE_BYTES, UnreadAnswers
from seaweedq.errors import Overloaded

CLOSING = (b"connection", b"close")


def end_connection(start: MutableMapping[str, Any]) -> None:
    """Makes an answer, by its first message, the last one on its connection."""
    headers = list(start.get("headers", ()))
    if CLOSING not in headers:
        start["headers"] = [*headers, CLOSING]


class Outgoing:
    """Sends the messages of one answer. Its start waits for the first bytes, since a large answer for which there is no
    room becomes a 503. `is_last` tells then whether the answer ends its connection: it may have been asked for before
    the broker's stop began. `begun` says that something was sent."""

    __slots__ = ("_dropped", "_is_last", "_out", "_start", "_unread", "begun")

    def __init__(self, out: Send, unread: UnreadAnswers, is_last: Callable[[], bool] = lambda: False) -> None:
        self._out = out
        self._unread = unread
        self._is_last = is_last
        self._start: MutableMapping[str, Any] | None = None
        self._dropped = False
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            streamed = message.get("more_body", False)  # and admitted by who streams it
            await self._begin(0 if streamed else len(message.get("body", b"")))
        if not self._dropped:
            await self._out(message)

    async def _begin(self, size: int) -> None:
        start, self._start = self._start, None
        assert start is not None
        self.begun = True
        try:
            if size >= LARGE_BYTES:
                self._unread.admit(size)
        except Overloaded as error:
            self._dropped = True
            status, headers, content = problem(error)
            await send(Answer(status, content, headers), self._out)
        else:
            if self._is_last():
                end_connection(start)
            await self._out(start)
