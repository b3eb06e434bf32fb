"""The transports of streams: server-sent events, and WebSockets with the messages of their clients.

Server-sent events (WHATWG HTML, 9.2) are one event a message. The event that ends a batch has the positions behind it
as its id, which EventSource sends back as Last-Event-ID when it connects again. The ids of a subscription's events are
`{lease}.{n}`. The leases of a stream are named `{stream}.{serial}`. n is the number of a message in its lease: it rises
in the order in which they are sent, and is the offset, above which stand the digits of the segment if that is not 0. So
the messages behind an id are known from the content of the lease, also after acks, and at another dispatcher.

Each frame of a WebSocket is a JSON object. Subprotocols: `seaweedq.v1`; `bearer.{token}` is for browsers, whose
WebSockets send no headers of a page's own (api/access/authentication takes it). The broker never chooses it: that would
show it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.api.connections.answers import RESTARTS, last_event
from seaweedq.api.problems import problem, unexpected
from seaweedq.api.request import ClientGone, Request, Send
from seaweedq.api.streams.session import Chunk
from seaweedq.broker.streams import LeasedBatch
from seaweedq.broker.subscriptions import Position, parse_lease
from seaweedq.errors import InvalidPositions, InvalidRequest, NotAcceptable, NotReady, SeaweedqError, UnreadableBody
from seaweedq.json_reasons import in_words
from seaweedq.rows.message_json import joined, json_array

DIGITS = 18  # of an offset
SEGMENT_STEP: int = 10**DIGITS
MAX_STREAM = 44  # characters; with a serial it is the name of a lease
SHOWN = 100
_ID = re.compile(r"(?P<lease>[A-Za-z0-9._-]{1,64})\.(?P<n>0|[1-9][0-9]{0,35})")
MEDIA = "text/event-stream"
LAST_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "the id of the last event that the client received",
    "schema": {"type": "string"},
}
HEADERS: Mapping[str, str] = {
    "content-type": f"{MEDIA}; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would keep events back
}
RETRY_MS = 1000
COMMENT = b":\n\n"
_BETWEEN = "\n\ndata: "
_NEWLINES = b"\r\n"
_LINE_END = re.compile(r"\r\n?|\n")
_IN_LINES = "\ndata: "
SUBPROTOCOL = "seaweedq.v1"
ANSWER_S = 0.5  # below the time that a stream has to end by itself
GOES_AWAY = 1001  # why the broker closes
Hear = Callable[[str | None], Awaitable[bytes]]  # returns the answer to a text; of bytes there is none


@dataclass(frozen=True, slots=True)
class EventId:
    """The id of the last event that a client has; `stream` is None if the lease is none of a stream's."""

    stream: str | None
    serial: int
    segment: int
    offset: int

    @staticmethod
    def parse(text: str) -> "EventId":
        """Returns the id in a text. Raises InvalidPositions."""
        found = _ID.fullmatch(text)
        if found is None:
            raise InvalidPositions(
                f"{text[:SHOWN]!r} is not a valid event id; an event id consists of a lease name, a dot and a number",
                value=text[:SHOWN],
            )
        segment, offset = divmod(int(found["n"]), SEGMENT_STEP)
        stream, serial = parse_lease(found["lease"]) or ("", 0)
        return EventId(stream if 0 < len(stream) <= MAX_STREAM else None, serial, segment, offset)


def id_at(position: Position) -> str:
    """Returns the id of the event at a position; one before all events if nothing was sent yet."""
    return f"{position.lease}.{lease_number(max(0, position.segment), max(0, position.offset))}"


def lease_number(segment: int, offset: int) -> int:
    """Returns the n of a message."""
    return segment * SEGMENT_STEP + offset


def lease_numbers(segments: pa.Array, offsets: pa.Array) -> pa.StringArray:
    """Returns the n of each message of a batch."""
    texts = offsets.cast(pa.string())
    if segments.null_count == 0 and not pc.any(pc.not_equal(segments, 0)).as_py():
        return texts
    long = pc.binary_join_element_wise(segments.cast(pa.string()), pc.utf8_lpad(texts, DIGITS, "0"), "")
    return pc.if_else(pc.equal(segments, 0), texts, long)


class EventTransport:
    """The transport of one SSE answer, on ASGI."""

    def __init__(self, out: Send) -> None:
        self._out = out

    async def begin(self, positions: str | None = None) -> None:
        """Sends the head, how long to wait before a reconnection, and the first positions."""
        headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in HEADERS.items()]
        await self._out({"type": "http.response.start", "status": 200, "headers": headers})
        place = b"" if positions is None else b"id: %b\n" % positions.encode()
        await self._send(b"retry: %d\n%b\n" % (RETRY_MS, place))

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends an event for each message; the last one has the positions."""
        await self._send(events(chunks, positions))

    async def leased(self, batch: LeasedBatch) -> None:
        """Sends an event for each message, with an id of its own."""
        await self._send(leased_events(batch))

    async def keep_alive(self) -> None:
        """Sends a comment, so that neither the client nor a proxy takes the connection for dead."""
        await self._send(COMMENT)

    async def bye(self, error: SeaweedqError) -> None:
        """Sends `event: bye` with a problem, and ends the answer."""
        await self._out(last_event(problem(error)[2]))

    async def _send(self, content: bytes) -> None:
        await self._out({"type": "http.response.body", "body": content, "more_body": True})


def events(chunks: Sequence[Chunk], positions: str) -> bytes:
    """Returns the events of all messages. There is at least one."""
    columns = [_in_lines(column) for chunk in chunks for column in chunk.texts]
    return b"data: %b\nid: %b\n\n" % (joined(columns, _BETWEEN), positions.encode())


def leased_events(batch: LeasedBatch) -> bytes:
    """Returns the events of leased messages. The id of each is that of its lease, and its number there."""
    if batch.rows.are_few:
        lease, numbered = batch.lease, batch.rows.numbered
        return "".join(
            f"id: {lease}.{lease_number(segment, at)}\ndata: {_LINE_END.sub(_IN_LINES, text)}\n\n"
            for segment, at, text in numbered
        ).encode()
    segments, offsets, texts = batch.rows.table.columns
    numbers = lease_numbers(segments, offsets)
    parts = pc.binary_join_element_wise(f"id: {batch.lease}.", numbers, "\ndata: ", _in_lines(texts), "\n\n", "")
    return bytes(joined([parts], ""))


def _in_lines(column: pa.StringArray) -> pa.StringArray:
    """Returns texts whose line breaks, which JSON may have between tokens, are those of an event's data."""
    _, _, data = column.buffers()
    octets = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    if not np.isin(octets, np.frombuffer(_NEWLINES, np.uint8)).any():
        return column
    return pc.replace_substring_regex(column, _LINE_END.pattern, _IN_LINES)


def check_accepted(request: Request) -> None:
    """Raises NotAcceptable if the client takes no events."""
    if not request.accepts(MEDIA):
        stated = (request.header(b"accept") or "")[:SHOWN]
        raise NotAcceptable(
            f"the stream is available only as {MEDIA} or as a WebSocket, but the request accepts {stated!r}",
            supported=[MEDIA],
        )


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
    """The transport of one WebSocket, on ASGI. `answering` is held while a message of the client is answered."""

    def __init__(self, out: Send) -> None:
        self._out = out
        self.answering = asyncio.Lock()

    async def begin(self, positions: str | None = None) -> None:
        """Sends the first positions, if there are any."""
        if positions is not None:
            await self._send(b'{"positions":"%b"}' % positions.encode())

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends messages, and the positions behind them."""
        messages = json_array([column for chunk in chunks for column in chunk.texts])
        sending = self._send(b'{"messages":%b,"positions":"%b"}' % (messages, positions.encode()))
        del messages
        await sending

    async def leased(self, batch: LeasedBatch) -> None:
        """Sends messages, and the name of their lease."""
        messages = json_array([batch.rows.table.column(2)])
        sending = self._send(b'{"messages":%b,"lease":%b}' % (messages, msgspec.json.encode(batch.lease)))
        del messages
        await sending

    async def answer(self, content: bytes) -> None:
        """Sends the answer to a message of the client."""
        await self._send(content)

    async def keep_alive(self) -> None:
        """Sends nothing: there are pings."""

    async def bye(self, error: SeaweedqError) -> None:
        """Sends the problem, and closes. An answer that is under way goes first, if it comes within ANSWER_S; nothing
        more is heard."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self.answering.acquire()
        await self._send(b'{"bye":%b}' % problem(error)[2])
        code = RESTARTS if isinstance(error, NotReady) else GOES_AWAY
        with suppress(OSError):
            await self._out({"type": "websocket.close", "code": code})

    async def refuse(self, error: SeaweedqError) -> None:
        """Sends an error frame; the connection stays open."""
        await self._send(b'{"error":%b}' % problem(error)[2])

    async def _send(self, content: bytes) -> None:
        message = {"type": "websocket.send", "text": content.decode()}
        del content  # the client of a gRPC call may take long, and the text goes out of the message there
        await _said(self._out, message)


async def listen(request: Request, socket: WebSocket, hear: Hear) -> None:
    """Answers the client's messages, one after the other; returns once it has gone. An error is an answer
    too."""
    with suppress(ClientGone):
        while (message := await request.receive())["type"] != "websocket.disconnect":
            async with socket.answering:
                await _answer(socket, hear, message.get("text"))


async def _answer(socket: WebSocket, hear: Hear, text: str | None) -> None:
    try:
        await socket.answer(await hear(text))
    except SeaweedqError as error:
        await socket.refuse(error)
    except (OSError, ClientGone):
        raise ClientGone from None
    except Exception as error:
        unexpected(error)  # logs it
        await socket.refuse(SeaweedqError("the broker met an unexpected error; see the broker's log for details"))


async def nothing_to_say(text: str | None) -> bytes:
    """Refuses a message of a client, for a stream that takes none. Raises UnreadableBody, InvalidRequest."""
    try:
        msgspec.json.decode(text or "", type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"the message is {in_words(error)}") from None
    raise InvalidRequest("clients cannot send messages on a topic's stream, only on a subscription's stream")
