"""Forwarding is publishing: rows reach the owner of their segment under an identity that makes a repeat known there.
The sender's side comes first, then the owner's.

An *identity* is a producer `~forward.{broker}.{segment}.{n}` under which this broker publishes rows of clients that
gave none. It is named after the segment that was tried first, and keeps its name at that segment's successors. It
carries one slice at a time until the slice's fate is known or given up, so its sequences arrive in order, and a repeat,
also at the segment's next owner, is known as one. Several identities go at a time; messages in flight together have no
order among them.

A *link* carries all frames that wait for one owner in few requests: while some are under way the next gathers.

A frame states the highest revision of coordination that its sender has seen, and the owner's journal then does. So an
upload that the sender has claimed is not forgotten unnoticed where a message names it (internals/lost-coordination.md).
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pyarrow as pa

from seaweedq.broker.log.group_commit import EncodedRows
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.local_append import LocalAppender, untaken
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import ErrorMessage, ForwardFrame, ForwardHeader, Outcome, encode_forward
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.coordination.seen_revisions import SeenRevisions
from seaweedq.errors import NotOwner, SeaweedqError, Unavailable
from seaweedq.segments.layout import Layout
from seaweedq.segments.producers import FORWARD, Sequences
from seaweedq.segments.rows import newest_us

IDENTITIES = 8  # of a segment
KEPT = 64  # segments whose identities are kept without a look whether they are sealed
FLIGHTS = 4  # to a broker
FORWARD_BYTES = 8 * 1024 * 1024
_outcomes = msgspec.msgpack.Decoder(list[Outcome])
_Sent = tuple[ForwardFrame, asyncio.Future[Outcome]]
THREAD_BYTES = 64 * 1024  # larger ones are checked in a worker thread


class Identity:
    """One identity of forwards to a segment."""

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._next = 0  # the sequence to give out next

    def sequences(self, count: int) -> Sequences:
        """Gives out the next `count` sequences."""
        low, self._next = self._next, self._next + count
        return Sequences(self._producer, low, self._next - 1)


class Identities:
    """The identities of a broker's forwards, by segment.

    Those of a segment that is sealed, or gone, are forgotten once none of them is lent. Their names are never used
    again: its successors know their sequences, and would take those of a new identity for repeats.
    """

    def __init__(self, broker: str, is_open: Callable[[Topic, int], bool]) -> None:
        self._broker = broker
        self._is_open = is_open
        self._numbers = itertools.count()
        self._free: dict[tuple[Topic, int], asyncio.LifoQueue[Identity]] = {}
        self._swept_at = KEPT

    def __len__(self) -> int:
        return len(self._free)

    @asynccontextmanager
    async def lend(self, topic: Topic, segment: int, deadline: Deadline) -> AsyncIterator[Identity]:
        """Lends an identity that nobody else uses meanwhile. Raises Unavailable if none is free in time."""
        free = self._free.get((topic, segment)) or self._make(topic, segment)
        try:
            identity = await deadline.bound(free.get())
        except TimeoutError:
            detail = (
                f"segment {segment} of topic {topic.name!r} has not answered earlier forwarded "
                f"requests within {deadline.time_s:g} s"
            )
            raise Unavailable(f"{detail}; nothing was stored") from None
        try:
            yield identity
        finally:
            free.put_nowait(identity)

    def forget(self, topic: Topic) -> None:
        """Forgets the identities of a topic that is gone."""
        for key in [key for key in self._free if key[0] is topic]:
            del self._free[key]

    def _make(self, topic: Topic, segment: int) -> asyncio.LifoQueue[Identity]:
        if len(self._free) >= self._swept_at:  # each time that they have doubled
            self.sweep()
            self._swept_at = max(KEPT, 2 * len(self._free))
        free = self._free[topic, segment] = asyncio.LifoQueue()
        numbers = list(itertools.islice(self._numbers, IDENTITIES))
        for number in reversed(numbers):
            free.put_nowait(Identity(f"{FORWARD}{self._broker}.{segment}.{number}"))
        return free

    def sweep(self) -> None:
        """Forgets the identities of segments that take nothing any more. Those that are lent keep theirs."""
        for (topic, segment), free in list(self._free.items()):
            if free.qsize() == IDENTITIES and not self._is_open(topic, segment):
                del self._free[topic, segment]


class _Link:
    """The frames that go to one broker."""

    def __init__(self, peers: Peers, url: str, timeout_s: float) -> None:
        self._peers = peers
        self._url = url
        self._timeout_s = timeout_s
        self._waiting: deque[_Sent] = deque()
        self._flights: dict[asyncio.Task[None], None] = {}

    def send(self, frame: ForwardFrame) -> asyncio.Future[Outcome]:
        """Sends a frame together with all others that wait."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((frame, outcome))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._depart)
        return outcome

    async def stop(self) -> None:
        """Ends what is under way, and fails what waits: nobody is there any more who needs an answer."""
        waiting, self._waiting = self._waiting, deque()
        for _, outcome in waiting:
            fail(outcome, Unavailable("this broker is stopping", inside=self._url))
        for flight in (flights := [*self._flights]):
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _depart(self) -> None:
        while self._waiting and len(self._flights) < FLIGHTS:
            taken: list[_Sent] = []
            size = 0
            while self._waiting and size < FORWARD_BYTES:
                frame, outcome = self._waiting.popleft()
                if not outcome.done():
                    taken.append((frame, outcome))
                    size += frame.header.length
            if taken:
                flight = asyncio.create_task(self._fly(taken), name=f"forward to {self._url}")
                self._flights[flight] = None
                flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.pop(flight)
        self._depart()

    async def _fly(self, taken: Sequence[_Sent]) -> None:
        error: Exception = Unavailable("a forwarded request was interrupted", inside=self._url)
        try:
            body = encode_forward([frame for frame, _ in taken])
            outcomes = _outcomes.decode(await self._peers.post(self._url, "publish", body, self._timeout_s))
            for (_, future), outcome in zip(taken, outcomes, strict=False):
                if outcome.trouble:
                    fail(future, outcome.trouble.error())
                else:
                    resolve(future, outcome)
        except SeaweedqError as failed:
            error = failed
        except msgspec.DecodeError as failed:
            detail = "unexpected response from another broker; does it run a different version?"
            error = Unavailable(detail, inside=f"{self._url}: {failed}")
        finally:
            for _, future in taken:
                fail(future, error)  # those that have no outcome


class Forwarder:
    """The links to all other brokers."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._peers = peers
        self._timeout_s = timeout_s
        self._links: dict[str, _Link] = {}

    def send(self, url: str, frame: ForwardFrame) -> asyncio.Future[Outcome]:
        """Forwards rows to the broker at `url`. The future raises Unavailable if their fate is unknown."""
        link = self._links.get(url)
        if link is None:
            link = self._links[url] = _Link(self._peers, url, self._timeout_s)
        return link.send(frame)

    async def stop(self) -> None:
        """Ends the requests that other brokers have not answered."""
        await asyncio.gather(*(link.stop() for link in self._links.values()))


class ForwardReceiver:
    """Appends forwarded rows, until a deadline that begins with their request."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        local: LocalAppender,
        deadline: Callable[[], Deadline],
        coordination: SeenRevisions,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._local = local
        self._deadline = deadline
        self._coordination = coordination

    async def receive(self, frames: Sequence[ForwardFrame]) -> list[Outcome]:
        """Returns an outcome for each frame. Rows that are new share a commit."""
        return await asyncio.gather(*map(self._receive, frames))

    async def _receive(self, frame: ForwardFrame) -> Outcome:
        header, deadline = frame.header, self._deadline()
        if header.seen > self._coordination.seen:  # the commit states it, since the rows may name what was written then
            self._coordination.seen = header.seen
        try:
            try:
                segment, layout = await deadline.bound(self._opened(header))
            except TimeoutError:
                raise NotOwner(untaken(deadline).detail) from None  # certainly not appended
            if header.part not in segment.source.parts:
                raise NotOwner(
                    f"the key range of segment {segment.id} of topic {header.topic!r} has no part that begins at key "
                    f"hash {header.part}"
                )
            in_thread = header.length > THREAD_BYTES
            rows = await asyncio.to_thread(_read, frame, layout) if in_thread else _read(frame, layout)
            return await self._local.append(segment, header.part, rows, frame.sequences, deadline)
        except SeaweedqError as error:
            return Outcome(trouble=ErrorMessage.from_error(error))

    async def _opened(self, header: ForwardHeader) -> tuple[OpenSegment, Layout]:
        """Returns the segment, and the layout of the rows."""
        topic = self._catalog.get(header.topic)
        if topic is None or topic.record.incarnation != header.incarnation:
            await self._catalog.refresh(header.topic, header.segment)
        topic = self._catalog.topic(header.topic)
        if topic.record.incarnation != header.incarnation:
            raise NotOwner(f"this broker knows a different topic with the name {header.topic!r}")
        if header.segment not in self._catalog.records(topic):
            await self._catalog.refresh(topic.name, header.segment)  # the other broker is ahead: it may have just come
        segment = await self._ownership.opened(topic, header.segment)
        return segment, await self._catalog.layout(topic, header.schema_id)


def _read(frame: ForwardFrame, layout: Layout) -> EncodedRows:
    rows = frame.rows(layout)
    return EncodedRows(rows, pa.py_buffer(frame.payload), newest_us(rows), layout.schema_id)
