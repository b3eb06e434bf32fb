"""Extends uvicorn's WebSocket protocol by the bounds that connections have for HTTP.

Messages have at most MAX_MESSAGE_BYTES, in at most MAX_FRAGMENTS, and take memory as bodies that are still coming do.
No more is read than was asked for, and nothing while the client takes nothing: neither messages nor pongs pile up.
The connection keeps the place that it had before: it is busy until its end, and never makes room for others.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode

from seaweedq.api.connections.connections import ConnectionBounds
from seaweedq.api.connections.memory import IncompleteBody, UnreadBuffer
from seaweedq.api.problems import problem
from seaweedq.api.request import CONNECTION, Connection, release_connection
from seaweedq.errors import NotReady, Overloaded

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_FRAGMENTS = 1024
PIECE_BYTES = 4 * 1024  # is parsed at a time: so many messages at most are waiting
PING_S = 20.0


def socket_options(answer_timeout_s: float) -> dict[str, Any]:
    """Returns the options of uvicorn's configuration for WebSockets."""
    return {
        "ws": BoundedWebSocket,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_per_message_deflate": False,
        "ws_ping_interval": PING_S,
        "ws_ping_timeout": answer_timeout_s,
    }


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One connection, which was `connection` for HTTP, and is that for its request still. It keeps its place until
    `leave` is called."""

    def __init__(
        self,
        *arguments: Any,
        bounds: ConnectionBounds,
        connection: Connection,
        leave: Callable[[], None],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._bounds = bounds
        self._connection = connection
        self._leave = leave
        self._message = IncompleteBody(self._dismiss)
        self._counted = 0  # bytes of a message that is still coming
        self._fragment_bytes = 0
        self._unparsed = memoryview(b"")
        self._slow: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None
        self._is_shut_down = self._is_lost = self._is_served = False
        self._served, self.app = self.app, self._serve
        self.refusal = "the WebSocket request has more than 128 headers, or a header over 8 KiB"

    def begin(self, transport: Any, head: bytes) -> bool:
        """Takes over the connection from HTTP, with the head of the request. Returns False if it cannot become
        a WebSocket, for the reason in `refusal`: the library takes fewer and shorter headers than HTTP here."""
        self.connection_made(transport)
        self._unread = UnreadBuffer(transport.get_write_buffer_size, transport.abort)
        self._abort_later()  # until the application has accepted
        self.data_received(head)
        return self.handshake_initiated

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases all that the connection held, but for the place of a request that goes on, as HTTP's do."""
        self._unparsed = memoryview(b"")
        self._release()
        if self._last:
            self._last.cancel()
        self._bounds.unread.end(self._unread)
        self._is_lost = True
        if not self._is_served:
            self._free_place()
        super().connection_lost(exc)

    def on_task_complete(self, task: Any) -> None:
        """Ends the request."""
        super().on_task_complete(task)
        self._is_served = False
        if self._is_lost:
            self._free_place()

    def _free_place(self) -> None:
        self._leave()
        release_connection(self._connection)

    def pause_writing(self) -> None:
        """Counts the bytes that the client does not take, and reads nothing more meanwhile."""
        super().pause_writing()
        self._bounds.unread.begin(self._unread)
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Goes on."""
        self._bounds.unread.end(self._unread)
        super().resume_writing()
        self.loop.call_soon(self._feed)

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, as far as they are wanted now."""
        self._unparsed = memoryview(bytes(self._unparsed) + data)
        self._feed()

    async def receive(self) -> Any:
        """As ASGI. The next message is parsed once this one was taken."""
        message = await super().receive()
        if not self.disconnected:
            self._feed()
        return message

    async def send(self, message: Any) -> None:
        """As ASGI. Raises ClientDisconnected once either side has ended the connection: uvicorn raises it only if
        the client has gone, and takes a frame behind its own close frame, as for a wrong frame, for a defect of the
        application. A refusal completes the handshake: uvicorn would log it as none, and answer once more."""
        await self.writable.wait()
        if self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Runs the application; its scope has the connection. A client that never takes the end of it is cut off."""
        cast(dict[str, Any], self.scope["extensions"])[CONNECTION] = self._connection
        await super().run_asgi()
        self._abort_later()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves the application. Neither one that is cancelled after `shutdown`, which has told the client, is a
        failure, nor one that accepts no client that has gone: uvicorn would log both as errors."""
        try:
            await self._served(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_shut_down:
                raise
            raise ClientDisconnected from None
        if self.transport.is_closing():
            raise ClientDisconnected

    def shutdown(self) -> None:
        """As uvicorn's, but a handshake under way is refused as requests are that a stopping broker does not serve:
        uvicorn answers 500, after which no client tries again. A connection that ends already may send no close frame,
        which would raise an error here and end the shutdown of all others."""
        self._is_shut_down = True
        if self.transport.is_closing():
            return
        if self.handshake_complete or self.close_sent or self.initial_response is not None:
            super().shutdown()
            return
        status, headers, body = problem(NotReady("the broker is stopping; connect again"))
        response = self.conn.reject(status, body.decode())
        del response.headers["content-type"]
        response.headers.update(headers)
        self.conn.send_response(response)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.stop_keepalive()
        self.transport.close()

    def start_keepalive(self) -> None:
        """Begins with pings, and with the frames that have come ahead of the handshake's end."""
        if self._last:
            self._last.cancel()
            self._last = None
        super().start_keepalive()
        self.loop.call_soon(self._feed)

    def handle_connect(self, event: Any) -> None:
        """Begins with a handshake that is a good one: the library answers the others in plain text, and logs each."""
        try:
            self.conn.process_request(event)
        except InvalidHandshake as error:
            self.refusal = f"the request is not a WebSocket handshake: {error}"
        else:
            super().handle_connect(event)
            self._is_served = self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS

    def handle_cont(self, event: Any) -> None:
        """Takes a fragment of a message."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"a message may have at most {MAX_FRAGMENTS} fragments")
        else:
            self._fragment_bytes += len(event.data)
            super().handle_cont(event)

    def handle_text(self, event: Any) -> None:
        """Takes a text, or the first fragment of one."""
        self._fragment_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        """Takes bytes, or their first fragment."""
        self._fragment_bytes = len(event.data)
        super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        """Hands a message on that has come whole."""
        self._fragment_bytes = 0
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                return
        super().send_receive_event_to_app()

    def send_keepalive_ping(self) -> None:
        """Sends a ping, unless the socket is full: then the bound on answers that nobody takes holds."""
        if self.writable.is_set():
            super().send_keepalive_ping()
        else:
            self.schedule_ping()

    def keepalive_timeout(self) -> None:
        """Ends a connection whose client does not answer. While the socket is full no answer is read."""
        if self.writable.is_set():
            super().keepalive_timeout()
            self._abort_later()
        else:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()

    def _feed(self) -> None:
        while len(self._unparsed) and self._wants_more():
            piece, self._unparsed = bytes(self._unparsed[:PIECE_BYTES]), self._unparsed[PIECE_BYTES:]
            super().data_received(piece)
            self._count()
        if self.transport.is_closing():
            self._unparsed = memoryview(b"")
        elif len(self._unparsed) or not self.writable.is_set() or self.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _wants_more(self) -> bool:
        """Returns whether to parse received bytes. Before the handshake is complete no frame is parsed: a wrong one
        could not be answered with a close frame."""
        is_parsing = self.handshake_complete or not self.handshake_initiated
        return is_parsing and self.writable.is_set() and not self.read_paused and not self.transport.is_closing()

    def _count(self) -> None:
        """Holds memory for a message that has come in part."""
        pending = self._fragment_bytes + len(self.conn.reader.buffer)
        if pending < self._counted or not pending:
            self._release()
        if pending > self._counted and not self.close_sent:
            self._slow = self._slow or self.loop.call_later(self._bounds.message_timeout_s, self._too_slow)
            more, self._counted = pending - self._counted, pending
            try:
                self._bounds.bodies.add(self._message, more)
            except Overloaded as error:
                self._bounds.refusals.note("bodies", error.detail)
                self._fail(CloseCode.TRY_AGAIN_LATER, "there is no memory for the message; try again")

    def _release(self) -> None:
        if self._counted:
            self._bounds.bodies.release(self._message)
            self._message, self._counted = IncompleteBody(self._dismiss), 0
        if self._slow:
            self._slow.cancel()
            self._slow = None

    def _dismiss(self) -> None:
        detail = "a message arrived slowly while other requests needed its memory"
        self._bounds.refusals.note("slow_body", detail)
        self._fail(CloseCode.TRY_AGAIN_LATER, detail)

    def _too_slow(self) -> None:
        self._slow = None
        self._fail(CloseCode.POLICY_VIOLATION, f"a message did not arrive within {self._bounds.message_timeout_s:g} s")

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Ends the connection with a close frame."""
        if self.close_sent or self.disconnected:
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self._abort_later()

    def _abort_later(self) -> None:
        if self._last is None and not self.disconnected:
            self._last = self.loop.call_later(self._bounds.answer_timeout_s, self.transport.abort)
