"""The way of one answer out: large ones are let through only if there is memory for those that nobody takes."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from seaweedq.api.access.peers import PREFIX
from seaweedq.api.bodies.request_reader import StreamedBody
from seaweedq.api.bodies.unread_answers import LARGE_BYTES, UnreadAnswers
from seaweedq.api.problems import problem_answer
from seaweedq.api.request import Answer, Request, Send, start_of
from seaweedq.broker.broker import Readiness

CLOSING = (b"connection", b"close")
TERMINALS = (b"curl/", b"Wget/", b"HTTPie/")
STORED = ("/payload", "/content")  # bytes of users, which stay as they are
_JSON = (b"application/json", b"application/problem+json")


class Outgoing:
    """Sends the messages of one answer. Its start waits for the first bytes, since a large answer for which there is no
    room becomes a 503. `begun` says that something was sent, and `status` which status. A `body` is one that comes
    while it is read: it is drained before the answer, so that the connection may be used again.

    An answer is the last one on its connection while the broker leaves or drains, so that the client turns to another
    broker: a connection that is idle when the broker ends may be closed under a request. Brokers stay until the
    hand-over. JSON for the programs of a terminal ends with a newline, so that the prompt has its own line.
    """

    __slots__ = ("_dropped", "_more", "_readiness", "_request", "_send", "_start", "_unread", "begun", "body", "status")

    def __init__(
        self,
        request: Request,
        send: Send,
        unread: UnreadAnswers,
        readiness: Readiness,
        more: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._request = request
        self._send = send
        self._unread = unread
        self._readiness = readiness
        self._more = more  # headers
        self._start: MutableMapping[str, Any] | None = None
        self._dropped = False
        self.begun = False
        self.status = 0
        self.body: StreamedBody | None = None

    async def answer(self, answer: Answer) -> None:
        """Sends a whole answer. If one was begun already its caller has lost the right to the rest: a stream of events
        ends with the reason, and the connection of any other answer is cut."""
        if self.begun:
            if self.body is not None:
                await self(last_event(bytes(answer.body)))
            elif self._request.connection:
                self._request.connection.abort()
            return
        ends = self.body is not None and not await self.body.drained()
        self.begun = True
        answer = self._refusal(len(answer.body)) or answer
        await self._send_whole(start_of(answer), {"type": "http.response.body", "body": answer.body}, ends)
        self._request.spend("bytes_out", len(answer.body))

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start, self.begun = self._start, None, True
            streamed = message.get("more_body", False)  # and admitted by who streams it
            if refusal := None if streamed else self._refusal(len(message.get("body", b""))):
                self._dropped = True
                await self._send_whole(start_of(refusal), {"type": "http.response.body", "body": refusal.body})
                self._request.spend("bytes_out", len(refusal.body))
                return
            await self._send_whole(start, message)
        elif not self._dropped:
            await self._send(message)
        if not self._dropped and self._request.meter is not None:
            await self._request.meter.sent(message)

    async def _send_whole(
        self, start: MutableMapping[str, Any], first: MutableMapping[str, Any], ends: bool = False
    ) -> None:
        """Sends the start of an answer, and its first bytes."""
        self.status = start["status"]
        if ends or self._readiness.draining or (self._readiness.leaving and not self._request.path.startswith(PREFIX)):
            headers = list(start.get("headers", ()))
            start["headers"] = headers if CLOSING in headers else [*headers, CLOSING]
        if self._more:
            start["headers"] = [*start.get("headers", ()), *self._more]
        if self._request.headers.get(b"user-agent", b"").startswith(TERMINALS):
            start, first = self._with_line_end(start, first)
        await self._send(start)
        await self._send(first)

    def _with_line_end(
        self, start: MutableMapping[str, Any], first: MutableMapping[str, Any]
    ) -> tuple[MutableMapping[str, Any], MutableMapping[str, Any]]:
        """Returns both, with a newline behind JSON that comes in one piece."""
        if not first.get("body") or first.get("more_body") or self._request.path.endswith(STORED):
            return start, first
        headers = {name.lower(): value for name, value in start.get("headers", ())}
        if b"content-encoding" in headers or headers.get(b"content-type", b"").partition(b";")[0] not in _JSON:
            return start, first
        longer = [(k, b"%d" % (int(v) + 1)) if k.lower() == b"content-length" else (k, v) for k, v in start["headers"]]
        return {**start, "headers": longer}, {**first, "body": bytes(first["body"]) + b"\n"}

    def _refusal(self, size: int) -> Answer | None:
        """Returns the answer in place of one for which there is no room."""
        if size < LARGE_BYTES or self._unread.has_room(size):
            return None
        return problem_answer(self._unread.refusal())


def last_event(content: bytes) -> dict[str, Any]:
    """Returns the message that ends a stream of events, with the problem why."""
    return {"type": "http.response.body", "body": b"event: bye\ndata: %b\n\n" % content}
