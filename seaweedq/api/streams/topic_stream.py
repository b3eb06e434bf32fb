"""`GET /v1/topics/{topic}/stream`: the messages of a whole topic as they come, to everybody who listens. Bare ASGI.

Nothing is kept of a listener: the positions that it gets with each batch are all that it needs to go on, at any broker.
A stream ends when its client goes, its topic is deleted, or the broker leaves.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from seaweedq.api.asgi.http import ClientGone, Receive, Scope, Send, connection_of, header, query, until_gone
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.asgi.problems import unexpected
from seaweedq.api.streams.chunks import CHUNK_BYTES, Chunk, Chunks
from seaweedq.api.streams.outlets import Outlet, Room
from seaweedq.api.streams.sse import MEDIA, EventStream
from seaweedq.api.streams.web_socket import WebSocket, accept, listen
from seaweedq.broker.streams.feeds import Feed
from seaweedq.broker.streams.positions import Positions
from seaweedq.broker.streams.topic_reader import TopicReader
from seaweedq.broker.streams.topic_streams import Start, StartTime, TopicStreams
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.errors import InvalidPositions, InvalidRequest, NotAcceptable, NotReady, SeaweedqError, Unavailable

COMMENT_S = 15.0
AGAIN_S = 0.2  # before a segment that could not be read is tried again
BYE_S = 1.0  # for a stream to end by itself
SHOWN = 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = Annotated[datetime, Meta(tz=True)]


@dataclass(frozen=True)
class TopicStreamRoute:
    """The route, with the services that it uses."""

    catalog: Catalog
    streams: TopicStreams
    chunks: Chunks
    room: Room
    clock: Clock

    async def serve(self, scope: Scope, receive: Receive, out: Send, topic: str) -> None:
        """Sends the messages of a topic as server-sent events: those that come, or those from `start` on.

        `start` is `latest` (default), `earliest`, a time (RFC 3339), or positions: an event's id, or the next offset of
        each segment, as in `0-17,1-5`. An event's data is a message as in a fetch. The id of the last event of a batch
        has the positions behind it; `Last-Event-ID` goes on there. A comment comes each 15 s, and `event: bye`, with a
        problem, where the broker ends the stream.
        """
        check_accepted(scope)
        reader, positions = await self._open(scope, topic)
        outlet = EventStream(out)
        await outlet.begin(positions)
        await self._run(scope, reader, outlet, until_gone(receive))

    async def serve_socket(self, scope: Scope, receive: Receive, out: Send, topic: str) -> None:
        """Sends the same over a WebSocket: frames with `messages` and the `positions` behind them."""
        reader, positions = await self._open(scope, topic)
        outlet = WebSocket(out)
        await accept(scope, receive, out)
        await outlet.begin(positions)
        await self._run(scope, reader, outlet, listen(receive, outlet))

    async def _open(self, scope: Scope, topic: str) -> tuple[TopicReader, str]:
        """Returns a reader where the request wants it to begin, and its positions."""
        reader = await self.streams.open(await self.catalog.known(check_name(topic)), start_of(scope))
        return reader, reader.positions

    async def _run(self, scope: Scope, reader: TopicReader, outlet: Outlet, goes: Coroutine[Any, Any, None]) -> None:
        with self.streams.feeds.following(reader.topic) as feed:
            await self._until_end(Stream(self, scope, reader, feed, outlet).run(), scope, goes)

    async def _until_end(self, work: Coroutine[Any, Any, None], scope: Scope, goes: Coroutine[Any, Any, None]) -> None:
        """Runs a stream until it ends, its client goes, or the broker leaves. Then a stream whose client does not take
        what was sent gets nothing more: its connection is cut."""
        running = asyncio.create_task(work)
        gone = asyncio.create_task(goes)
        leaving = asyncio.create_task(self.streams.feeds.ended.wait())
        try:
            await asyncio.wait({running, gone, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not (running.done() or gone.done()):
                await asyncio.wait({running, gone}, timeout=BYE_S, return_when=asyncio.FIRST_COMPLETED)
                if not running.done() and (connection := connection_of(scope)):
                    connection.abort()
                    await asyncio.wait({gone}, timeout=BYE_S)
            if running.done():
                running.result()
        finally:
            for task in (running, gone, leaving):
                task.cancel()


@dataclass
class Stream:
    """One stream, from its begin to its last word."""

    route: TopicStreamRoute
    scope: Scope
    reader: TopicReader
    feed: Feed
    outlet: Outlet

    async def run(self) -> None:
        """Sends batches until the broker leaves, or an error ends the stream, which is its last word."""
        try:
            while not self.route.streams.feeds.ended.is_set():
                await self._step()
            raise NotReady("the broker is leaving; connect again")
        except ClientGone:
            return
        except SeaweedqError as error:
            await self.outlet.bye(error)
        except Exception as error:
            unexpected(error)  # logs it
            await self.outlet.bye(SeaweedqError("the broker met an unexpected error; its log has the details"))

    async def _step(self) -> None:
        """Sends one batch, or waits for messages; after COMMENT_S without any it gives a sign of life."""
        until_s = self.route.clock.monotonic_s() + COMMENT_S
        while not self.route.streams.feeds.ended.is_set():
            seen = self.feed.signal.count
            await self.route.room.wait(self.scope)
            if await self._send_batch():
                await asyncio.sleep(0)  # where nothing had to be waited for, others have their turn
                return
            left_s = until_s - self.route.clock.monotonic_s()
            if left_s <= 0:
                await self.outlet.keep_alive()
                return
            await self.feed.wait(seen, min(left_s, AGAIN_S) if self.reader.missing else left_s)

    async def _send_batch(self) -> bool:
        """Sends what there is, up to about CHUNK_BYTES. Returns whether anything was read."""
        found: list[Chunk] = []
        size = 0
        has_read = False
        for segment in await self.reader.due():
            try:
                chunk = await self.route.chunks.read(self.reader.topic, segment, self.reader.offset(segment))
            except Unavailable:
                self.reader.missing = True
                continue
            if chunk.size > CHUNK_BYTES and not self.route.room.has(size + chunk.size):
                self.reader.missing = True  # a message so large that it has to wait for room of its own
                break
            has_read = True
            self.reader.advance_to(segment, chunk.next_offset)
            if chunk.texts:
                found.append(chunk)
                size += chunk.size
            if size >= CHUNK_BYTES:
                break
        if found:
            await self.outlet.batch(found, self.reader.positions)
        return has_read


def check_accepted(scope: Scope) -> None:
    """Raises NotAcceptable where the client takes no events."""
    accepted = header(scope, b"accept")
    if accepted is None:
        return
    ranges = [one.partition(";")[0].strip().lower() for one in accepted.split(",")]
    if not {MEDIA, "text/*", "*/*", ""} & set(ranges):
        raise NotAcceptable(
            f"the stream is {MEDIA}, or a WebSocket; the request accepts {accepted[:SHOWN]!r}", supported=[MEDIA]
        )


def start_of(scope: Scope) -> Start:
    """Returns where a stream is to begin. Raises InvalidPositions for a bad Last-Event-ID, and InvalidRequest."""
    resumed = header(scope, b"last-event-id")
    if resumed:
        return Positions.parse(resumed)
    text = query(scope).get("start", "latest")
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        return Positions.parse(text)
    except InvalidPositions:
        return StartTime(_microseconds(text))


def _microseconds(text: str) -> int:
    try:
        moment = msgspec.convert(text, _TIME).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        raise InvalidRequest(
            f"start is {text[:SHOWN]!r}; it must be latest, earliest, a time (RFC 3339, with an offset), or positions "
            "such as 0-17,1-5",
            field="start",
            value=text[:SHOWN],
        ) from None
    return (moment - EPOCH) // timedelta(microseconds=1)
