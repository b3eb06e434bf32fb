"""Reads messages for streams, as JSON texts, in pieces of bounded size.

Most streams of a topic are at its end, and want the same messages at the same moment: the newest chunks are kept for a
moment, so that they are read and encoded once. What is not in memory is read by a few streams at a time: all of them
together must not hold more than their sockets take.
"""

import asyncio
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass

import pyarrow as pa

from seaweedq.access.caller import NEVER_US
from seaweedq.broker.read import ClusterTime, Readable
from seaweedq.broker.topics import Topic
from seaweedq.broker.uploads import Payloads
from seaweedq.clock import Clock
from seaweedq.codec.message_json import fitting_texts

CHUNK_BYTES = 256 * 1024
CHUNK_ROWS = 4096
FILES, PEERS = 16, 64  # reads at a time, of files and of other brokers: who hangs holds up none of the other kind
SHARED_BYTES, SHARED_S = 4 * 1024 * 1024, 1.0
Key = tuple[Topic, int, int]  # topic, segment, offset


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

    def __init__(self, payloads: Payloads, time: ClusterTime, clock: Clock) -> None:
        self._payloads = payloads
        self._time = time
        self._clock = clock
        self._files, self._peers = asyncio.Semaphore(FILES), asyncio.Semaphore(PEERS)
        self._shared: OrderedDict[Key, Chunk] = OrderedDict()
        self._shared_bytes = 0

    async def read(self, topic: Topic, segment: Readable, offset: int, until_us: int) -> Chunk:
        """Returns messages from an offset on, which is below the segment's end; none where all of them have expired.
        Links in it end by `until_us`, when the reader's token does: readers whose token ends share no links. Raises
        Unavailable."""
        key = topic, segment.id, offset
        if (found := self._find(key)) and (until_us == NEVER_US or not found.has_links):
            return found
        waits = nullcontext() if segment.is_in_memory(offset) else self._files if segment.certain else self._peers
        async with waits:
            if (found := self._find(key)) and (until_us == NEVER_US or not found.has_links):
                return found
            chunk = await self._read(topic, segment, offset, until_us)
        if chunk.next_offset >= segment.end and (until_us == NEVER_US or not chunk.has_links):
            self._share(key, chunk)
        return chunk

    async def _read(self, topic: Topic, segment: Readable, offset: int, until_us: int) -> Chunk:
        pieces = await segment.read(offset, CHUNK_ROWS, CHUNK_BYTES)
        next_offset = pieces[-1][0] + pieces[-1][1].num_rows if pieces else offset
        alive = await self._time.unexpired(pieces)
        links = await self._payloads.links_of(topic, [rows for _, rows in alive], until_us)
        texts, left_out = fitting_texts(alive, segment.id, segment.layout, links, CHUNK_BYTES)
        size = sum(_size(column) for column in texts)
        return Chunk(texts, size, next_offset if left_out is None else left_out, self._clock.monotonic_s(), bool(links))

    def _find(self, key: Key) -> Chunk | None:
        """Returns a chunk that is kept, and forgets those that are too old: messages expire, and so do links."""
        now_s = self._clock.monotonic_s()
        while self._shared and now_s - next(iter(self._shared.values())).made_s > SHARED_S:
            self._drop()
        return self._shared.get(key)

    def _share(self, key: Key, chunk: Chunk) -> None:
        if chunk.size > CHUNK_BYTES or key in self._shared:
            return
        self._shared[key] = chunk
        self._shared_bytes += chunk.size
        while self._shared_bytes > SHARED_BYTES:
            self._drop()

    def _drop(self) -> None:
        _, chunk = self._shared.popitem(last=False)
        self._shared_bytes -= chunk.size


def _size(column: pa.StringArray) -> int:
    """Returns how many bytes the texts take."""
    return int(column.nbytes) - 4 * len(column)
