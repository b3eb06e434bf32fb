"""`GET /v1/topics/{topic}/stream`: the messages of a whole topic as they come, to all listeners. Bare ASGI.

No state of a listener is kept: with the positions that it gets with each batch it can go on, at any broker.
A stream ends when its client goes, its topic is deleted, or the broker leaves.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Self

from seaweedq.access.rights import Action
from seaweedq.api.parameters import check_name, time_us
from seaweedq.api.request import Request, Send
from seaweedq.api.routes import SOCKET, STREAM, TOPIC, Router
from seaweedq.api.services import Parts
from seaweedq.api.streams import session as sessions
from seaweedq.api.streams.session import CHUNK_BYTES, Chunk, Chunks, StreamMemory, StreamSession, StreamTransport
from seaweedq.api.streams.transports import (
    LAST_ID,
    MEDIA,
    EventTransport,
    WebSocket,
    accept,
    check_accepted,
    listen,
    nothing_to_say,
)
from seaweedq.broker.streams import OpenStreams, Positions, Start, StartTime, TailWatch, TopicReader, TopicStreams
from seaweedq.broker.topics import Catalog
from seaweedq.clock import Clock
from seaweedq.errors import BelowRetention, InvalidPositions, Unavailable
from seaweedq.units import MOMENT

AGAIN_S = 0.2  # before a segment that could not be read is tried again
router = Router("read")
EXAMPLE = 'data: {"id":"0-17","key":"UA","value":{"carrier":"UA"},"segment":0,"offset":17}\nid: 1:0-18\n\n'
_PARAMETERS = (
    {
        "name": "start",
        "in": "query",
        "description": "latest, earliest, a time (RFC 3339, or an age such as 5m), or positions",
        "schema": {"type": "string", "default": "latest"},
        "example": "earliest",
    },
    {**LAST_ID, "description": "the id of the last event that the client received; replaces start"},
)
_FORMS = f"latest, earliest, {MOMENT}, or positions such as 0-17,1-5"


@dataclass(frozen=True)
class TopicStreamRoute:
    """The route, with the services that it uses."""

    catalog: Catalog
    streams: TopicStreams
    chunks: Chunks
    room: StreamMemory
    clock: Clock
    open: OpenStreams

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, clock = parts.broker, parts.broker.process.clock
        streaming, room = broker.streaming, parts.get(StreamMemory)
        return cls(broker.catalog, streaming.topics, parts.get(Chunks), room, clock, streaming.open)

    @router.route(
        "GET",
        f"{TOPIC}/stream",
        Action.READ,
        "streamTopic",
        "Stream a topic's messages",
        mode=STREAM,
        lasts=True,
        answers={200: {MEDIA: {"schema": {"type": "string"}, "example": EXAMPLE}}},
        refuses=(404, 406, 409, 416, InvalidPositions, BelowRetention),
        parameters=_PARAMETERS,
    )
    async def serve(self, request: Request, out: Send, topic: str) -> None:
        """Sends the messages of a topic as server-sent events or over a WebSocket: new messages as they arrive, or all
        from `start` on.

        `start` is `latest` (the default), `earliest`, a time (RFC 3339, or an age such as `5m`), or positions: an
        event's id, or the next offset of each segment, such as `0-17,1-5`. Positions must cover all keys of the topic.
        Messages with the same key arrive in order, even across splits and merges. The broker keeps no state about the
        listener, and any broker can answer.

        An event's data is a message as in a fetch. The id of a batch's last event holds the positions after the batch,
        and the first block of the stream holds the starting positions. A listener that reconnects with `Last-Event-ID`
        continues there. It misses nothing, but may receive part of a batch twice.

        A WebSocket first receives `{"positions": "..."}`, then `{"messages": [...], "positions": "..."}` for each
        batch. To reconnect, use `start={positions}`. The broker answers anything the client sends with `{"error":
        {...}}`.

        A topic with thousands of segments can have positions that are too long for a header: over 48 KiB, the answer is
        422.
        """
        check_accepted(request)
        reader, positions = await self._open(request, topic)
        transport = EventTransport(out)
        await transport.begin(positions)
        await self._run(request, reader, transport, request.until_gone())

    @router.route(SOCKET, f"{TOPIC}/stream", Action.READ, mode=STREAM, lasts=True)
    async def serve_socket(self, request: Request, out: Send, topic: str) -> None:
        """Sends the same over a WebSocket: frames with `messages` and the `positions` behind them."""
        reader, positions = await self._open(request, topic)
        transport = WebSocket(out)
        await accept(request, out)
        await transport.begin(positions)
        await self._run(request, reader, transport, listen(request, transport, nothing_to_say))

    async def _open(self, request: Request, topic: str) -> tuple[TopicReader, str]:
        """Returns a reader at the request's start, and its positions."""
        reader = await self.streams.open(
            await self.catalog.require(check_name(topic)), start_of(request, self.clock.now_us())
        )
        return reader, reader.positions

    async def _run(
        self, request: Request, reader: TopicReader, transport: StreamTransport, goes: Coroutine[Any, Any, None]
    ) -> None:
        watches = self.streams.watches
        with self.open.counting(reader.topic), watches.following(reader.topic) as watch:
            stream = TopicStream(self, request, reader, watch, transport)
            await StreamSession(watches.ended, request, transport).run(stream.step, goes)


@dataclass
class TopicStream:
    """The steps of one stream. `needed` is the room that the next batch takes, at least: it is not read before."""

    route: TopicStreamRoute
    request: Request
    reader: TopicReader
    watch: TailWatch
    transport: StreamTransport
    needed: int = CHUNK_BYTES

    async def step(self) -> None:
        """Sends one batch, or waits for messages; after COMMENT_S without any it gives a sign of life."""
        until_s = self.route.clock.monotonic_s() + sessions.COMMENT_S
        while not self.route.streams.watches.ended.is_set():
            seen = self.watch.signal.count
            if await self.route.room.wait(self.request, self.needed, until_s):
                if await self._send_batch():
                    await asyncio.sleep(0)  # if nothing had to be waited for, others have their turn
                    return
                if self.needed > CHUNK_BYTES:
                    continue
            left_s = until_s - self.route.clock.monotonic_s()
            if left_s <= 0:
                await self.transport.keep_alive()
                return
            await self.watch.wait(seen, min(left_s, AGAIN_S) if self.reader.missing else left_s)

    async def _send_batch(self) -> bool:
        """Sends due messages, up to about CHUNK_BYTES. Returns whether any was read."""
        found: list[Chunk] = []
        size = 0
        has_read, until_us = False, self.request.caller.expires_us
        self.needed = CHUNK_BYTES
        for segment in await self.reader.due():
            try:
                offset = self.reader.offset(segment)
                chunk = await self.route.chunks.read(self.reader.topic, segment, offset, until_us)
            except Unavailable:
                self.reader.missing = True
                continue
            if chunk.size > CHUNK_BYTES and not self.route.room.has(size + chunk.size):
                self.needed = chunk.size  # a message so large that it has to wait for room of its own
                break
            has_read = True
            self.reader.advance_to(segment, chunk.next_offset)
            if chunk.texts:
                found.append(chunk)
                size += chunk.size
            if size >= CHUNK_BYTES:
                break
        if found:
            await self.transport.batch(found, self.reader.positions)
        return has_read


def start_of(request: Request, now_us: int) -> Start:
    """Returns the start of a stream. Raises InvalidPositions for a bad Last-Event-ID, and InvalidRequest."""
    resumed = request.header(b"last-event-id")
    if resumed:
        return Positions.parse(resumed)
    text = request.query.get("start", "latest")
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        return Positions.parse(text)
    except InvalidPositions:
        return StartTime(time_us(text, "start", now_us, _FORMS))
