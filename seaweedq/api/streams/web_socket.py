"""WebSockets: an outlet for streams, and what their clients say.

Each frame is a JSON object. Subprotocols: `seaweedq.v1`; `bearer.{token}` is for browsers, whose WebSockets send no
headers of a page's own (api/access/authentication takes it). The broker never chooses it: that would show it.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from seaweedq.api.problems import problem, unexpected
from seaweedq.api.request import Answer, ClientGone, Request, Send
from seaweedq.api.streams.chunks import Chunk
from seaweedq.api.traffic import SWITCHED
from seaweedq.broker.streams import Batch
from seaweedq.codec.message_json import json_array
from seaweedq.errors import InvalidRequest, NotReady, SeaweedqError, UnreadableBody
from seaweedq.json_reasons import in_words

SUBPROTOCOL = "seaweedq.v1"
RESTARTS, GOES_AWAY, UNAUTHENTICATED = 1012, 1001, 4401  # why the broker closes
Hear = Callable[[str | None], Awaitable[bytes]]  # returns the answer to a text; of bytes there is none


class SocketOutgoing:
    """The way out of a request for a WebSocket. Before it has become one its answer is one of HTTP; then the answer is
    why it ends: its caller has lost the right to it, or may have. `status` is 0 until something was sent."""

    __slots__ = ("_request", "_send", "status")

    def __init__(self, request: Request, send: Send) -> None:
        self._request = request
        self._send = send
        self.status = 0

    @property
    def begun(self) -> bool:
        """Whether anything was sent."""
        return self.status != 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        await self._send(message)
        if message["type"] == "websocket.accept":
            self.status = SWITCHED
        if self._request.meter is not None:
            await self._request.meter.sent(message)

    async def answer(self, answer: Answer) -> None:
        """Refuses the request, or ends the WebSocket and says why."""
        with suppress(OSError):  # the client has gone
            if self.status == SWITCHED:
                await self._send({"type": "websocket.send", "text": f'{{"bye":{bytes(answer.body).decode()}}}'})
                code = RESTARTS if answer.status == 503 else UNAUTHENTICATED
                await self._send({"type": "websocket.close", "code": code})
                return
            self.status = answer.status
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers.items()]
            await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "websocket.http.response.body", "body": bytes(answer.body)})


async def accept(request: Request, out: Send) -> None:
    """Completes the handshake. Raises ClientGone."""
    await request.receive()
    chosen = SUBPROTOCOL if SUBPROTOCOL in request.scope["subprotocols"] else None
    await _said(out, {"type": "websocket.accept", "subprotocol": chosen})


async def _said(out: Send, message: dict[str, Any]) -> None:
    try:
        await out(message)
    except OSError:
        raise ClientGone from None


class WebSocket:
    """The outlet of one WebSocket, on ASGI."""

    def __init__(self, out: Send) -> None:
        self._out = out

    async def begin(self, positions: str | None = None) -> None:
        """Sends the first positions, if there are any."""
        if positions is not None:
            await self._send(b'{"positions":"%b"}' % positions.encode())

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends messages, and the positions behind them."""
        messages = json_array([column for chunk in chunks for column in chunk.texts])
        await self._send(b'{"messages":%b,"positions":"%b"}' % (messages, positions.encode()))

    async def leased(self, batch: Batch) -> None:
        """Sends messages, and the name of their lease."""
        messages = json_array([batch.rows.table.column(2)])
        await self._send(b'{"messages":%b,"lease":%b}' % (messages, msgspec.json.encode(batch.lease)))

    async def answer(self, content: bytes) -> None:
        """Sends the answer to what the client has said."""
        await self._send(content)

    async def keep_alive(self) -> None:
        """Sends nothing: there are pings."""

    async def bye(self, error: SeaweedqError) -> None:
        """Sends the problem, and closes."""
        await self._send(b'{"bye":%b}' % problem(error)[2])
        code = RESTARTS if isinstance(error, NotReady) else GOES_AWAY
        with suppress(OSError):
            await self._out({"type": "websocket.close", "code": code})

    async def refuse(self, error: SeaweedqError) -> None:
        """Sends an error frame; the connection stays open."""
        await self._send(b'{"error":%b}' % problem(error)[2])

    async def _send(self, content: bytes) -> None:
        await _said(self._out, {"type": "websocket.send", "text": content.decode()})


async def listen(request: Request, socket: WebSocket, hear: Hear) -> None:
    """Answers what the client says, one message after the other; returns once it has gone. An error is an answer
    too."""
    with suppress(ClientGone):
        while (message := await request.receive())["type"] != "websocket.disconnect":
            try:
                await socket.answer(await hear(message.get("text")))
            except SeaweedqError as error:
                await socket.refuse(error)
            except (OSError, ClientGone):
                raise ClientGone from None
            except Exception as error:
                unexpected(error)  # logs it
                await socket.refuse(SeaweedqError("the broker met an unexpected error; its log has the details"))


async def nothing_to_say(text: str | None) -> bytes:
    """Refuses what the client of a stream says that takes nothing. Raises UnreadableBody, InvalidRequest."""
    try:
        msgspec.json.decode(text or "", type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"the message is {in_words(error)}") from None
    raise InvalidRequest("the stream of a topic takes no messages; a subscription does")
