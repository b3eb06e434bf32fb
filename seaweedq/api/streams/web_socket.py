"""WebSockets: an outlet for streams, and what their clients say.

Each frame is a JSON object. Subprotocols: `seaweedq.v1`; `bearer.{token}` is for browsers, whose WebSockets send no
headers of a page's own: it is taken, and means nothing while there is no authentication.
"""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, Send
from seaweedq.api.asgi.problems import problem
from seaweedq.api.streams.chunks import Chunk
from seaweedq.codec.message_json import json_array
from seaweedq.errors import InvalidRequest, NotReady, SeaweedqError, UnreadableBody

SUBPROTOCOL = "seaweedq.v1"
RESTARTS, GOES_AWAY = 1012, 1001  # why the broker closes


async def refuse(answer: Answer, out: Send) -> None:
    """Answers a request for a WebSocket with an HTTP answer, before it has become one."""
    headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers.items()]
    await out({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await out({"type": "websocket.http.response.body", "body": bytes(answer.body)})


async def accept(scope: Scope, receive: Receive, out: Send) -> None:
    """Completes the handshake."""
    await receive()
    chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
    await out({"type": "websocket.accept", "subprotocol": chosen})


class WebSocket:
    """The outlet of one WebSocket, on ASGI."""

    def __init__(self, out: Send) -> None:
        self._out = out

    async def begin(self, positions: str) -> None:
        """Sends the first positions."""
        await self._send(b'{"positions":"%b"}' % positions.encode())

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends messages, and the positions behind them."""
        messages = json_array([column for chunk in chunks for column in chunk.texts])
        await self._send(b'{"messages":%b,"positions":"%b"}' % (messages, positions.encode()))

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
        try:
            await self._out({"type": "websocket.send", "text": content.decode()})
        except OSError:
            raise ClientGone from None


async def listen(receive: Receive, socket: WebSocket) -> None:
    """Answers what the client says to a stream that takes nothing; returns once it has gone."""
    with suppress(ClientGone):
        while (message := await receive())["type"] != "websocket.disconnect":
            await socket.refuse(_judge(message.get("text")))


def _judge(text: str | None) -> SeaweedqError:
    try:
        msgspec.json.decode(text or "", type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        return UnreadableBody(f"the message is not JSON: {error}")
    return InvalidRequest("the stream of a topic takes no messages; a subscription does")
