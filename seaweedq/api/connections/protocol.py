"""Extends uvicorn's HTTP protocol: connections are bounded, heads in size and time, answers in memory.

`request_reader` bounds bodies. Before a request's head is complete no application is asked, and uvicorn bounds nothing.
Nor does it bound the bytes of a chunked body beside its content, as trailers, of which none is kept, and the rest of a
body behind its answer, which nobody reads.

Requests may be pipelined. The next one begins once the buffer of the answers before it is nearly empty, and only so
many are parsed ahead as fit in PIPELINED_BYTES: else one connection that takes no answer could have any number made.

What a connection holds of requests that have not begun, heads by half and requests that wait for their turn, counts
with the bodies that are still coming (`incomplete_bodies`). HTTP/1.0 knows no chunks: answers without a stated length
end with their connection there.
"""

import asyncio
import logging
from collections.abc import MutableMapping
from functools import partial
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from seaweedq.access.limits import Account
from seaweedq.api.connections.connections import Admission, ConnectionBounds
from seaweedq.api.connections.memory import IncompleteBody, UnreadBuffer
from seaweedq.api.connections.web_sockets import BoundedWebSocket
from seaweedq.api.problems import problem
from seaweedq.api.request import (
    CONNECTION,
    Answer,
    Receive,
    Scope,
    Send,
    release_connection,
    send,
)
from seaweedq.broker.access import ClientCertificate
from seaweedq.errors import Overloaded, SeaweedqError, UnreadableRequest

logger = logging.getLogger(__name__)
MAX_HEAD_BYTES = 64 * 1024  # and at most one read more
MAX_HEAD_LINES = 128
TOO_MANY_LINES = f"the request has more than {MAX_HEAD_LINES} headers"
LINE_BYTES = 256  # of a header's line, as Python holds it, beside its text
MAX_BESIDE_BYTES = 8 * 1024  # of a body, between two pieces of its content and behind the last one; and one read more
PIPELINED_BYTES = 4 * 1024
AHEAD_BYTES = 3 * 1024  # of a request that waits for its turn
STEP_BYTES = 4 * 1024  # in which a connection holds memory for such, and for a head that has come in part
SOCKETS = b"/stream"  # paths that may become WebSockets
UNREADABLE = "Invalid HTTP request received."
YOUNG_S = 0.5  # of a connection without a request, when the serving ends
BUFFER_BYTES = 16 * 1024  # of answers not taken: from there on they count as unread


def certificate_of(transport: asyncio.Transport) -> ClientCertificate | None:
    """Returns the certificate that the client has shown, if this port asks for one."""
    tls = transport.get_extra_info("ssl_object")
    ca = getattr(tls.context, "client_ca", b"") if tls else b""
    shown = tls.getpeercert(binary_form=True) if ca else None
    try:
        return ClientCertificate.read(shown, ca) if shown else None
    except Exception as error:  # OpenSSL accepts some that cryptography refuses, with errors of several kinds
        logger.warning(
            "a client's certificate gives the client no rights, because the certificate cannot be read: %s", error
        )
        return None


class UntilClosed:
    """An application whose answers are sent without chunks. uvicorn's cycle counts the rest of a stated length; here
    each part of an answer is all of the rest."""

    def __init__(self, app: Any, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._has_length = True

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        """As ASGI."""

        async def send(message: MutableMapping[str, Any]) -> None:
            """Sends a part of the answer on, as the rest of a body whose length is not stated."""
            if message["type"] == "http.response.start":
                self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not self._has_length:
                    self._cycle.chunked_encoding = False
            elif not self._has_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await out(message)

        await self._app(scope, receive, send)


class _Trailers(list[tuple[bytes, bytes]]):
    """Where trailers go, which nobody asks for: none is kept."""

    def append(self, one: tuple[bytes, bytes]) -> None:
        """Forgets a trailer."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection; a head has to be complete within `head_timeout_s`."""

    def __init__(self, *arguments: Any, bounds: ConnectionBounds, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds = bounds
        self._timer: asyncio.TimerHandle | None = None
        self._head_open = False
        self._head_bytes = 0
        self._is_chunked = False  # the body that comes now
        self._body_timer: asyncio.TimerHandle | None = None  # of a body that goes on behind its answer
        self._beside_bytes = 0
        self._early: IncompleteBody | None = None  # holds the memory of requests that have not begun
        self._early_bytes = 0
        self._body_left = 0  # of the request that comes now, by its Content-Length
        self._unparsed: memoryview | None = None
        self._deferred: tuple[Any, Any] | None = None
        self._admission = Admission.NONE
        self._running: Any = None  # the request that is being answered
        self._work: asyncio.Task[None] | None = None  # that answers it
        self._held_back = False  # reading is paused until all that came is parsed, and has begun
        self._extensions = {CONNECTION: self}
        self.account: Account | None = None
        self.certificate: ClientCertificate | None = None
        self.socket: BoundedWebSocket | None = None  # that has taken over

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a head."""
        super().connection_made(transport)
        self._made_s = self.loop.time()
        transport.set_write_buffer_limits(BUFFER_BYTES)
        self.certificate = certificate_of(transport)
        self._unread = UnreadBuffer(transport.get_write_buffer_size, transport.abort)
        self._timer = self.loop.call_later(self._bounds.head_timeout_s, self._too_slow)
        self._admission = self._bounds.enter(self, transport)
        if self._admission is Admission.NONE:
            self._send_and_close(self._no_place())

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait for a head, and forgets its unread answers. It has its place as long as its request goes on:
        clients that come, ask and go would else have requests without end."""
        self._stop_timer()
        self._stop_body_timer()
        self._release_early()
        self._bounds.unread.end(self._unread)
        if self._work and not self._work.done():
            self._work.add_done_callback(self._free_place)
        else:
            self._free_place()
        if self._running and not self._running.response_complete:  # uvicorn tells only the one that was parsed last
            self._running.disconnected = True
            self._running.message_event.set()
        self._unparsed = self._deferred = None
        super().connection_lost(exc)

    def _free_place(self, _: object = None) -> None:
        self._bounds.connections.leave(self)
        release_connection(self)

    def on_message_begin(self) -> None:
        """Counts from the begin of a head."""
        super().on_message_begin()
        if self.timeout_keep_alive_task:  # begun by the end of a body behind its answer, in the same read
            self._unset_keepalive_if_required()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._head_open, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Ends the wait for a head that is complete."""
        self._head_open = False
        if self._early:
            self._release_early()
        if self.parser.should_upgrade() and not self._should_upgrade():
            return
        if self._timer:
            self._stop_timer()
        if self._admission is Admission.RESERVE:
            may_ask = self._bounds.connections.may_ask(self, self.url.partition(b"?")[0])
            self.app = self.config.loaded_app if may_ask else self._refuse
        stated, codings = b"", []
        for name, value in self.headers:
            if name == b"content-length":
                stated = stated or value.strip(b" \t")
            elif name == b"transfer-encoding":
                codings.append(value.lower())
        if codings and any(coding != b"chunked" for coding in codings):
            self.app = partial(_refuse_with, UnreadableRequest("the only supported transfer coding is chunked"))
        if len(self.headers) > MAX_HEAD_LINES:
            self.app = partial(_refuse_with, UnreadableRequest(TOO_MANY_LINES))
        self._body_left = int(stated) if stated.isdigit() else 0
        super().on_headers_complete()
        if codings and not self.parser.should_upgrade():
            self._is_chunked, self._beside_bytes = True, 0
            self.headers = _Trailers()

    def on_body(self, body: bytes) -> None:
        """Counts the rest of a body. A piece that comes alone stays as it is: a bytearray would copy it twice."""
        self._body_left -= len(body)
        if cycle := self.cycle:
            if not cycle.body:
                cycle.body = b""  # type: ignore[assignment]
            elif isinstance(cycle.body, bytes):  # a second piece before the first was taken
                cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes that it is the broker's turn."""
        self._is_chunked = False
        if self.parser.should_upgrade() and not self._should_upgrade():
            return
        super().on_message_complete()
        if self._body_timer:
            self._stop_body_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        if self.cycle and not self.cycle.response_complete:
            self._bounds.connections.mark_busy(self)

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, but of pipelined requests only a few at a time."""
        self._bounds.connections.touch(self)
        if self._unparsed is not None or self.pipeline or self._deferred:
            self._unparsed = memoryview(bytes(self._unparsed or b"") + data)
            self._hold_back()
        elif len(data) <= max(self._body_left, PIPELINED_BYTES):
            self._feed(data)
            if self.pipeline:
                self._hold_back()
        else:
            self._unparsed = memoryview(data)
            self._feed_more()

    def pause_writing(self) -> None:
        """Counts the answers that are not taken. No more requests are read meanwhile."""
        super().pause_writing()
        self._bounds.unread.begin(self._unread)

    def resume_writing(self) -> None:
        """Goes on with the request that waited for its predecessor's answer to be taken."""
        self._bounds.unread.end(self._unread)
        super().resume_writing()
        if self._deferred:
            (cycle, app), self._deferred = self._deferred, None
            self._start_asgi_task(cycle, app)
            self.loop.call_soon(self._feed_more)

    def on_response_complete(self) -> None:
        """Begins with the next request, or waits for one. A connection that closes must not wait for ever for its last
        answer to be taken."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._bounds.connections.mark_quiet(self)
            if self._is_chunked or self._body_left > 0:
                self._body_timer = self.loop.call_later(self._bounds.message_timeout_s, self._body_too_slow)
        if self.transport.is_closing():
            self._abort_later()
        elif self._held_back:
            self.loop.call_soon(self._feed_more)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection over to a WebSocket, with its place: it is busy from now on."""
        if self.app == self._refuse:
            self._send_and_close(self._no_place())
            return
        if self.flow.write_paused or self.pipeline or self._deferred or self._is_answering:
            self.send_400_response("the request asks for a WebSocket before the previous request was answered")
            return
        self._stop_timer()
        self._release_early()
        self._unparsed = None
        self._bounds.connections.mark_busy(self)
        self.connections.discard(self)
        self.socket = socket = BoundedWebSocket(
            self.config,
            self.server_state,
            self.app_state,
            bounds=self._bounds,
            connection=self,
            leave=self._leave,
        )
        self.transport.set_protocol(socket)
        if not socket.begin(self.transport, self._head()):
            self._bounds.refusals.note("handshake", socket.refusal)
            self._send_and_close(UnreadableRequest(socket.refusal))

    def _leave(self) -> None:
        """Gives up the place, once the WebSocket has ended."""
        self._bounds.connections.leave(self)
        self.socket = None

    def _head(self, without: bytes = b"") -> bytes:
        start = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = (b"%b: %b" % one for one in self.headers if one[0] != without)
        return b"\r\n".join([start, *lines, b"", b""])

    def _should_upgrade(self) -> bool:
        """Whether the request becomes a WebSocket; elsewhere, and in HTTP/1.0, the wish is ignored, as HTTP asks."""
        is_new = self.parser.get_http_version() == "1.1"
        asks = is_new and self.parser.get_method() == b"GET" and self.url.partition(b"?")[0].endswith(SOCKETS)
        return asks and super()._should_upgrade()

    async def drained(self) -> None:
        """Returns once the client has taken nearly all that was sent, or has gone."""
        await (self.socket.writable.wait() if self.socket else self.flow.drain())

    def abort(self) -> None:
        """Ends the connection, whatever was not taken."""
        self.transport.abort()

    def stay(self) -> None:
        """Begins a request that lasts for as long as its client likes. Raises Overloaded if there are too many."""
        connections = self._bounds.connections
        if not connections.stay(self):
            most = connections.most_staying
            detail = f"{most} of them, three quarters of max_connections={connections.most}"
            self._bounds.refusals.note("staying", f"too many streams and waiting requests: there are {detail}")
            raise Overloaded(
                f"too many streams and waiting requests: the broker has {detail}; try again",
                max_connections=connections.most,
            )

    def go(self) -> None:
        """Ends such a request."""
        self._bounds.connections.go(self)

    def end_after_answer(self) -> None:
        """Has the answer to the request of now be the last one."""
        if self._running:
            self._running.keep_alive = False

    def exempt(self) -> None:
        """Counts for its address no more: a broker of this cluster is at its other end."""
        self._bounds.connections.exempt(self)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that was idle for too long."""
        super().timeout_keep_alive_handler()
        self._abort_later()

    def shutdown(self) -> None:
        """Ends the connection at the end of the serving, once its answer is complete. One that has just come gets
        YOUNG_S for its first request: its client has been told nothing yet, and cannot know whether that was taken."""
        if self.cycle is None and (left_s := self._made_s + YOUNG_S - self.loop.time()) > 0:
            self.loop.call_later(left_s, self.shutdown)
        else:
            super().shutdown()

    def make_room(self) -> None:
        """Closes a quiet connection for another one."""
        self._bounds.refusals.note("quiet_connection", "it was idle for longest, and other connections need its place")
        self.transport.close()
        self._abort_later()

    def send_400_response(self, msg: str) -> None:
        """Answers with a problem, and closes the connection."""
        self._send_and_close(UnreadableRequest(msg))

    def _send_and_close(self, error: SeaweedqError) -> None:
        status, headers, content = problem(error)
        headers |= {"content-length": str(len(content)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", content]))
        self.transport.close()
        self._abort_later()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.flow.write_paused:
            self._deferred = cycle, app
            self.flow.pause_reading()
        else:
            self._running = cycle
            if cycle.scope["http_version"] == "1.0":
                app = UntilClosed(app, cycle)
            self._work = task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _parse(self, data: bytes | memoryview) -> None:
        """As uvicorn's `data_received`, which goes on behind any head that wishes for another protocol as if no body
        followed: the body would be lost, or be taken for requests."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as wish:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._ignore_wish(data[wish.args[0] :])
        except HttpParserError:
            self.logger.warning(UNREADABLE)
            self.send_400_response(UNREADABLE)

    def _ignore_wish(self, rest: bytes | memoryview) -> None:
        """Parses a head once more without its wish, and the bytes behind it."""
        if self.parser.get_method() == b"CONNECT":
            self.send_400_response("this broker is not a proxy")
            return
        head, self.parser = self._head(without=b"upgrade"), HttpRequestParser(self)
        # as uvicorn makes it: requests that were pipelined behind a last one are no error
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parse(head)
        if len(rest) and not self.transport.is_closing():
            self._parse(rest)

    def _feed(self, data: bytes | memoryview) -> None:
        """Parses, and counts the bytes that come before a head is complete, and those of a body beside its content."""
        left = self._body_left
        self._parse(data)
        if self._head_open:
            self._count_head(len(data))
        elif self._is_chunked:
            self._beside_bytes = self._beside_bytes + len(data) if self._body_left == left else 0
            if self._beside_bytes > MAX_BESIDE_BYTES and not self.transport.is_closing():
                self._end_body(f"the body has more than {MAX_BESIDE_BYTES} bytes of trailers or chunk extensions")

    def _count_head(self, size: int) -> None:
        """Counts bytes of a head that is not complete."""
        if self.transport.is_closing():
            return
        self._head_bytes += size
        self._timer = self._timer or self.loop.call_later(self._bounds.head_timeout_s, self._too_slow)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(f"the request line and headers have more than {MAX_HEAD_BYTES} bytes")
        elif len(self.headers) > MAX_HEAD_LINES:
            self.send_400_response(TOO_MANY_LINES)
        else:
            self._hold_early()

    def _hold_early(self) -> None:
        """Holds the memory of a head that has come in part, and of requests that wait for their turn."""
        need = AHEAD_BYTES * len(self.pipeline) + (len(self._unparsed) if self._unparsed is not None else 0)
        if self._head_open:
            need += self._head_bytes + LINE_BYTES * len(self.headers)
        if need < self._early_bytes:
            self._release_early()
        self._early = self._early or IncompleteBody(self._dismiss, step_bytes=STEP_BYTES)
        more, self._early_bytes = need - self._early_bytes, need
        try:
            self._bounds.bodies.add(self._early, more)
        except Overloaded as error:
            self._bounds.refusals.note("bodies", error.detail)
            if self._is_answering:
                self.transport.abort()
            else:
                self._send_and_close(error)

    def _release_early(self) -> None:
        if self._early:
            self._bounds.bodies.release(self._early)
            self._early, self._early_bytes = None, 0

    def _dismiss(self) -> None:
        self._bounds.refusals.note("slow_head", "a request arrived slowly while other requests needed its memory")
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _feed_more(self) -> None:
        """Parses the rest of a read, until a request has to wait for an answer to the one before it."""
        while self._unparsed is not None and not self.transport.is_closing():
            if self.pipeline or self._deferred:
                self._hold_back()
                return
            size = max(self._body_left, PIPELINED_BYTES)
            data, rest = self._unparsed[:size], self._unparsed[size:]
            self._unparsed = rest if len(rest) else None
            self._feed(data)
        if self._held_back and not (self.pipeline or self._deferred or self.transport.is_closing()):
            self._held_back = False
            if not self._head_open:
                self._release_early()
            self.flow.resume_reading()

    def _hold_back(self) -> None:
        self._held_back = True
        self.flow.pause_reading()
        self._hold_early()

    async def _refuse(self, scope: Scope, receive: Receive, out: Send) -> None:
        """As ASGI: answers a request for which there is no place, and closes the connection."""
        await _refuse_with(self._no_place(), scope, receive, out)

    def _no_place(self) -> Overloaded:
        most = self._bounds.connections.most
        if self._bounds.connections.is_over(self):
            most = self._bounds.connections.most_per_address
            detail = f"its address already has max_connections_per_address={most} connections, all of them busy"
            self._bounds.refusals.note("address", detail)
            return Overloaded(f"{detail}; try again", max_connections_per_address=most)
        self._bounds.refusals.note(
            "connection", f"the broker has max_connections={most} connections, and none of them is idle"
        )
        return Overloaded(
            f"all max_connections={most} connections of the broker are busy; try again", max_connections=most
        )

    def _too_slow(self) -> None:
        """Closes the connection without an answer: no request has come. If requests before it wait for their turn,
        the rest of the head may have come long ago: the broker has not read it yet, and the wait begins again."""
        if self.pipeline or self._deferred or self._unparsed is not None:
            self._timer = self.loop.call_later(self._bounds.head_timeout_s, self._too_slow)
            return
        self._bounds.refusals.note(
            "slow_head",
            f"the request line and headers did not arrive within head_timeout_s={self._bounds.head_timeout_s:g}",
        )
        self.transport.close()
        self._abort_later()

    def _body_too_slow(self) -> None:
        self._end_body(
            "the client kept sending the body for "
            f"request_timeout_s={self._bounds.message_timeout_s:g} after the broker had answered"
        )

    def _end_body(self, detail: str) -> None:
        self._bounds.refusals.note("unread_body", detail)
        if self.cycle.response_started:
            self.transport.close()
            self._abort_later()
        else:
            self.send_400_response(detail)

    def _stop_body_timer(self) -> None:
        if self._body_timer:
            self._body_timer.cancel()
            self._body_timer = None

    def _abort_later(self) -> None:
        """Ends a connection that is closing, even if its client never takes the rest."""
        self._stop_timer()
        self._timer = self.loop.call_later(self._bounds.answer_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


async def _refuse_with(error: SeaweedqError, scope: Scope, receive: Receive, out: Send) -> None:
    """As ASGI: answers with an error, and closes the connection."""
    status, headers, content = problem(error)
    await send(Answer(status, content, {**headers, "connection": "close"}), out)
