"""One stream to a client, of a topic or of a subscription: it sends parts until its client goes, its topic or
subscription is deleted, or the broker leaves.

A stream makes nothing for a client that does not take it: it waits until the socket has taken the last parts
(`drained`), and until there is room among the answers that nobody takes (api/connections/memory). So a slow client
costs one batch, which that module counts, and ends like every client that takes no byte for answer_timeout_s.

A stream that ends says why (`bye`). One whose client does not take the last parts gets nothing more when the broker
leaves: its connection is cut.

Messages of topics are read as JSON texts, in pieces of bounded size. Most streams of a topic are at its end, and want
the same messages at the same moment: the newest chunks are kept for a moment, so that they are read and encoded once.
Chunks that are not in memory are read for a few streams at a time: all of them together must not hold more than their
sockets take.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from seaweedq.access.rights import NEVER_US
from seaweedq.api.connections.memory import UnreadAnswers
from seaweedq.api.problems import unexpected
from seaweedq.api.request import ClientGone, Request
from seaweedq.api.services import Parts
from seaweedq.broker.read import ClusterTime, Readable
from seaweedq.broker.streams import LeasedBatch
from seaweedq.broker.topics import Topic
from seaweedq.broker.uploads import Payloads
from seaweedq.clock import Clock
from seaweedq.errors import NotReady, SeaweedqError
from seaweedq.rows.message_json import fitting_texts
from seaweedq.segments.trace_headers import note_delivery
from seaweedq.traces import Traces

CHUNK_BYTES = 256 * 1024
CHUNK_ROWS = 4096
FILES, PEERS = 16, 64  # reads at a time, of files and of other brokers: one kind that hangs does not hold up the other
SHARED_BYTES, SHARED_S = 4 * 1024 * 1024, 1.0
Key = tuple[Topic, int, int, int]  # topic, segment, offset, version of the schema
LOOK_S = 0.5  # between two looks for room
COMMENT_S = 15.0  # between two signs of life
BYE_S = 1.0  # for a stream to end by itself
T = TypeVar("T")


@dataclass(slots=True)
class Chunk:
    """Messages of one segment as texts; the next chunk begins at `next_offset`."""

    texts: list[pa.StringArray]
    size: int
    next_offset: int
    made_s: float = 0.0
    has_links: bool = False


class Chunks:
    """The chunks of one broker's streams. At most SHARED_BYTES of them are kept."""

    def __init__(self, payloads: Payloads, time: ClusterTime, clock: Clock, traces: Traces | None) -> None:
        self._payloads = payloads
        self._traces = traces
        self._time = time
        self._clock = clock
        self._files, self._peers = asyncio.Semaphore(FILES), asyncio.Semaphore(PEERS)
        self._shared: OrderedDict[Key, Chunk] = OrderedDict()
        self._shared_bytes = 0

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        process = broker.process
        return cls(broker.uploading.payloads, broker.reading.readables.time, process.clock, process.traces)

    async def read(self, topic: Topic, segment: Readable, offset: int, until_us: int) -> Chunk:
        """Returns messages from an offset on, which is below the segment's end; none if all of them have expired.
        Links in it end by `until_us`, when the reader's token does: readers whose token ends share no links. Raises
        Unavailable."""
        key = topic, segment.id, offset, topic.layout.schema_id
        if (found := self._find(key)) and (until_us == NEVER_US or not found.has_links):
            return found
        waits = nullcontext() if segment.is_in_memory(offset) else self._files if segment.certain else self._peers
        async with waits:
            if (found := self._find(key)) and (until_us == NEVER_US or not found.has_links):
                return found
            chunk = await self._read(topic, segment, offset, until_us)
        is_at_end = chunk.next_offset >= segment.end and (until_us == NEVER_US or not chunk.has_links)
        if is_at_end and chunk.size <= CHUNK_BYTES and key not in self._shared:
            self._shared[key] = chunk
            self._shared_bytes += chunk.size
            while self._shared_bytes > SHARED_BYTES:
                self._drop()
        return chunk

    async def _read(self, topic: Topic, segment: Readable, offset: int, until_us: int) -> Chunk:
        begun_us = self._clock.now_us() if self._traces is not None else 0
        pieces = await segment.read(offset, CHUNK_ROWS, CHUNK_BYTES)
        next_offset = pieces[-1][0] + pieces[-1][1].num_rows if pieces else offset
        alive = await self._time.unexpired(pieces)
        links = await self._payloads.links_of(topic, [rows for _, rows in alive], until_us)
        texts, left_out = fitting_texts(alive, segment.id, segment.layout, links, CHUNK_BYTES)
        if self._traces is not None:
            rows = [rows for _, rows in alive]
            note_delivery(self._traces, topic.name, rows, begun_us, segment=str(segment.id))
        size = sum(int(column.nbytes) - 4 * len(column) for column in texts)  # without offsets
        return Chunk(texts, size, next_offset if left_out is None else left_out, self._clock.monotonic_s(), bool(links))

    def _find(self, key: Key) -> Chunk | None:
        """Returns a chunk that is kept, and forgets those that are too old: messages expire, and so do links."""
        now_s = self._clock.monotonic_s()
        while self._shared and now_s - next(iter(self._shared.values())).made_s > SHARED_S:
            self._drop()
        return self._shared.get(key)

    def _drop(self) -> None:
        _, chunk = self._shared.popitem(last=False)
        self._shared_bytes -= chunk.size


class StreamTransport(Protocol):
    """Sends the parts of one stream."""

    async def begin(self, positions: str | None = None) -> None:
        """Says that the stream has begun, and its positions if it has some."""

    async def batch(self, chunks: Sequence[Chunk], positions: str) -> None:
        """Sends messages, and the positions behind them."""

    async def leased(self, batch: LeasedBatch) -> None:
        """Sends messages of a subscription, which are leased."""

    async def keep_alive(self) -> None:
        """Sends a sign of life, if the transport has none of its own."""

    async def bye(self, error: SeaweedqError) -> None:
        """Ends the stream, and says why."""


class StreamMemory:
    """The memory for messages that streams send. While there is none, one stream checks now and then, for all of
    them."""

    def __init__(self, unread: UnreadAnswers, clock: Clock) -> None:
        self._unread = unread
        self._clock = clock
        self._full_until_s = float("-inf")

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.reader.unread, parts.broker.process.clock)

    def has(self, size: int) -> bool:
        """Returns whether there is room now. That there is none for a large message says nothing of other ones."""
        now_s = self._clock.monotonic_s()
        if size <= CHUNK_BYTES and now_s < self._full_until_s:
            return False
        if self._unread.has_room(size):
            return True
        if size <= CHUNK_BYTES:
            self._full_until_s = now_s + LOOK_S
        return False

    async def wait(self, request: Request, size: int, until_s: float) -> bool:
        """Returns once the client has taken the last parts, and there is room for so many bytes; False if there is no
        room by `until_s` (monotonic seconds)."""
        connection = request.connection
        while True:
            if connection:
                await connection.drained()
            if self.has(size):
                return True
            if self._clock.monotonic_s() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)


@dataclass
class StreamSession:
    """One stream, from its begin to its last word. `ended` is set once the broker leaves."""

    ended: asyncio.Event
    request: Request
    transport: StreamTransport
    _interruptible: asyncio.Timeout | None = None

    async def run(self, step: Callable[[], Awaitable[None]], goes: Coroutine[Any, Any, None]) -> None:
        """Repeats `step` until the stream ends, or `goes` says that its client has gone."""
        running = asyncio.create_task(self._repeat(step))
        gone = asyncio.create_task(goes)
        leaving = asyncio.create_task(self.ended.wait())
        try:
            await asyncio.wait({running, gone, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not (running.done() or gone.done()):
                if self._interruptible:
                    self._interruptible.reschedule(asyncio.get_running_loop().time())
                await asyncio.wait({running, gone}, timeout=BYE_S, return_when=asyncio.FIRST_COMPLETED)
                if not running.done() and (connection := self.request.connection):
                    connection.abort()
                    await asyncio.wait({gone}, timeout=BYE_S)
            if running.done():
                running.result()
            if gone.done():
                gone.result()
        finally:
            for task in (running, gone, leaving):
                task.cancel()

    async def unless_ended(self, work: Awaitable[T]) -> T | None:
        """Returns the result of `work`, which a step of `run` awaits; None if the broker leaves before, then it is
        cancelled. It makes no task: each message of each stream comes through here."""
        interruptible = asyncio.timeout(None)
        try:
            async with interruptible:
                self._interruptible = interruptible
                return await work
        except TimeoutError:
            if not interruptible.expired():
                raise
            return None
        finally:
            self._interruptible = None

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            while not self.ended.is_set():
                await step()
            raise NotReady("the broker is stopping; connect again")
        except ClientGone:
            return
        except SeaweedqError as error:
            await self.transport.bye(error)
        except Exception as error:
            unexpected(error)  # logs it
            await self.transport.bye(
                SeaweedqError("the broker met an unexpected error; see the broker's log for details")
            )
