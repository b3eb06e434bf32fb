"""Streaming: messages that are sent as they come, of topics (topic_streams) and of subscriptions.

The streams of subscriptions are served by any broker: the next messages of one, and its end. The dispatcher of the
subscription leases, and bounds the messages in flight; the broker of the stream knows its position alone. It asks for
the messages behind that. A request that is repeated, by itself or since its client came back at another broker, gets
the same messages, as long as their lease is open.

A batch has the messages of one lease as JSON texts, by segment and offset: so their order is known again from the
content of the lease. A new message goes to all subscriptions of its topic at once, and its text is the same in all of
them. So the last rows are kept, as long as they are few and small, with the transports' forms of them.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from seaweedq.access.rights import NEVER_US
from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.read.request_search import SearchRequest, Target
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import StreamAnswer, StreamCall, TopicCall
from seaweedq.broker.service import Service
from seaweedq.broker.streams.topic_streams import TailWatches, TopicStreams
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.leases import Position
from seaweedq.broker.subscriptions.pull_rounds import DeliveredRows, Pull
from seaweedq.broker.subscriptions.subscribing import DispatcherFinder, Subscribing
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.payloads import Payloads
from seaweedq.broker.uploads.uploads import Uploading
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, SeaweedqError, SubscriptionNotFound
from seaweedq.rows.message_json import message_texts
from seaweedq.segments.layout import Layout

SCHEMA = pa.schema([("segment", pa.int64()), ("offset", pa.int64()), ("text", pa.string())])
FEW = 32  # rows, for which Arrow's kernels cost more than they do
SHARED_BYTES = 64 * 1024  # of rows that are kept
SHARED_ROWS = 32  # so many of them
Key: TypeAlias = tuple[Topic, int, int, int, int]  # segment, first offset, count, attempt
NEXT, LEAVE, COUNT = "stream-next", "stream-leave", "stream-count"
ANSWER_S = 5.0  # of a dispatcher that is told that a connection has left
COUNT_S = 1.0  # of a broker that is asked how many streams it has
ASKED = 64  # brokers at a time
T = TypeVar("T")


class Rows:
    """Messages in the order in which they are sent; `table` has SCHEMA. There is at least one."""

    def __init__(self, table: pa.RecordBatch) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def are_few(self) -> bool:
        """Returns whether `numbered` is faster than Arrow."""
        return int(self.table.num_rows) <= FEW

    @cached_property
    def numbered(self) -> list[tuple[int, int, str]]:
        """Returns segment, offset and text of each message."""
        return list(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    @cached_property
    def size(self) -> int:
        """Returns about how many bytes the texts take."""
        return int(self.table.column(2).nbytes)

    @cached_property
    def last(self) -> tuple[int, int]:
        """Returns segment and offset of the last message."""
        end = self.table.num_rows - 1
        return self.table.column(0)[end].as_py(), self.table.column(1)[end].as_py()

    def encoded(self) -> bytes:
        """Returns the rows for another broker."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(self.table)
        return bytes(sink.getvalue())

    @staticmethod
    def decode(content: bytes) -> "Rows":
        """Returns the rows that another broker has encoded."""
        return Rows(pa.ipc.open_stream(content).read_next_batch())


class LeasedBatch(msgspec.Struct, frozen=True):
    """The messages of a lease."""

    lease: str
    rows: Rows


class SharedRows:
    """The rows that were made last for some subscription of this broker. Those with references have links, which end;
    they are not kept."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Key, tuple[Layout, Rows]] = OrderedDict()

    def of(self, topic: Topic, found: Sequence[DeliveredRows], links: dict[str, str]) -> Rows:
        """Returns the rows of a lease's messages."""
        key = _key(topic, found)
        if key is None:
            return rows_of(found, links)
        layout, known = self._rows.get(key, (None, None))
        if known and layout is found[0].segment.layout:
            return known
        rows = rows_of(found, links)
        if rows.size <= SHARED_BYTES:
            self._rows[key] = found[0].segment.layout, rows
            if len(self._rows) > SHARED_ROWS:
                self._rows.popitem(last=False)
        return rows


def _key(topic: Topic, found: Sequence[DeliveredRows]) -> Key | None:
    """Returns the name of rows that other subscriptions may get too."""
    if len(found) != 1:
        return None
    one = found[0]
    offsets, attempts, count = one.offsets, one.attempts, len(one.offsets)
    first, attempt = int(offsets[0]), int(attempts[0])
    if int(offsets[-1]) - first + 1 != count or "_reference" in one.rows.schema.names:
        return None
    return None if count > 1 and (attempts != attempt).any() else (topic, one.segment.id, first, count, attempt)


def rows_of(found: Sequence[DeliveredRows], links: dict[str, str]) -> Rows:
    """Returns the rows of a lease's messages."""
    if len(found) == 1:
        return Rows(_table(list(found), links))
    rising = sorted(found, key=lambda one: (one.segment.id, int(one.offsets[0])))
    parts = [_table(list(group), links) for _, group in groupby(rising, lambda one: (one.segment.id, one.rows.schema))]
    table = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    order = np.lexsort((table.column(1).to_numpy(), table.column(0).to_numpy()))
    return Rows(table.take(pa.array(order)) if (np.diff(order) != 1).any() else table)


def _table(found: list[DeliveredRows], links: dict[str, str]) -> pa.RecordBatch:
    """Returns the messages of one segment and schema: texts take 0.2 ms a batch, however small that is."""
    segment, count = found[0].segment, sum(len(one.offsets) for one in found)
    offsets = pa.array(np.concatenate([one.offsets for one in found]))
    attempts = pa.array(np.concatenate([one.attempts for one in found]))
    rows = found[0].rows if len(found) == 1 else pa.concat_batches([one.rows for one in found])
    texts = message_texts(offsets, rows, segment.id, segment.layout, attempts, links)
    return pa.record_batch([pa.array(np.full(count, segment.id)), offsets, texts], schema=SCHEMA)


@dataclass(frozen=True)
class SubscriptionStreams:
    """The streams of this `broker`, and those of other brokers whose subscriptions this one dispatches."""

    broker: str
    admin: SubscriptionAdmin
    dispatcher: Dispatcher
    finder: DispatcherFinder
    payloads: Payloads
    peers: Peers
    rows: SharedRows = field(default_factory=SharedRows)

    async def check(self, topic: Topic, name: str) -> None:
        """Raises SubscriptionNotFound. The dispatcher is not asked: a client that comes back after its death must not
        be sent away."""
        if not self.dispatcher.has(topic, name) and not await self.admin.find(topic, name):
            raise SubscriptionNotFound(
                f"topic {topic.name!r} has no subscription {name!r}", topic=topic.name, subscription=name
            )

    async def next(self, topic: Topic, name: str, wanted: Pull, until_us: int = NEVER_US) -> LeasedBatch | None:
        """Returns the messages behind `wanted.position`, which are leased; None if there are none within `wait_s`,
        or too many are in flight. Links in them end by `until_us`. Raises SubscriptionNotFound, TopicBeingDeleted,
        Unavailable."""

        async def here(target: Target) -> LeasedBatch | None:
            return await self._next(topic, name, replace(wanted, wait_s=target.wait_s), until_us)

        async def there(target: Target) -> LeasedBatch | None:
            assert wanted.position
            call = self._call(topic, name, wanted.position)
            call.max_messages, call.max_bytes, call.wait_s = wanted.max_messages, wanted.max_bytes, target.wait_s
            call.links_until_us = until_us
            found = await target.ask(self._ask(target.url, NEXT, call, StreamAnswer, target.answer_s))
            return LeasedBatch(found.lease, Rows.decode(found.rows)) if found.lease else None

        return await self.finder.search(topic, name, SearchRequest(wanted.wait_s)).answer(here, there)

    async def leave(self, topic: Topic, name: str, position: Position) -> None:
        """Has a connection get nothing any more. Raises as `next`."""

        async def here(_: Target) -> None:
            await self.dispatcher.leave(topic, name, position)

        async def there(target: Target) -> None:
            call = self._call(topic, name, position)
            await target.ask(self._ask(target.url, LEAVE, call, bool, ANSWER_S))

        await self.finder.search(topic, name, SearchRequest()).answer(here, there)

    async def answer_next(self, topic: Topic, call: StreamCall) -> StreamAnswer:
        """Answers `next` of another broker."""
        wanted = Pull(call.max_messages, call.wait_s, call.consumer, position=_position(call), max_bytes=call.max_bytes)
        found = await self._next(topic, call.subscription, wanted, call.links_until_us)
        return StreamAnswer(found.lease, found.rows.encoded()) if found else StreamAnswer("", b"")

    async def answer_leave(self, topic: Topic, call: StreamCall) -> bool:
        """Answers `leave` of another broker."""
        await self.dispatcher.leave(topic, call.subscription, _position(call))
        return True

    async def _next(self, topic: Topic, name: str, wanted: Pull, until_us: int) -> LeasedBatch | None:
        leased = await self.dispatcher.pull(topic, name, wanted)
        if leased.name is None or not leased.messages:
            return None
        links = await self.payloads.links_of(topic, [one.rows for one in leased.messages], until_us)
        self.dispatcher.check_lease()
        return LeasedBatch(leased.name, self.rows.of(topic, leased.messages, links))

    def _call(self, topic: Topic, name: str, position: Position) -> StreamCall:
        return StreamCall(
            topic.name,
            topic.record.incarnation,
            name,
            position.stream,
            position.connection,
            position.consumer,
            position.serial,
            position.segment,
            position.offset,
            position.resumed,
            position.max_in_flight,
            frees=position.frees,
            broker=self.broker,
        )

    async def _ask(self, url: str | None, call: str, request: StreamCall, answer: type[T], timeout_s: float) -> T:
        if url is None:
            raise NotOwner("the broker that could answer this request is no longer running")
        return await self.peers.call(url, call, request, answer, timeout_s)


def _position(call: StreamCall) -> Position:
    begin = Position(call.stream, call.connection, call.consumer, call.max_in_flight)
    place = begin.at(call.serial, call.segment, call.offset)
    return replace(place, resumed=call.resumed, frees=call.frees, broker=call.broker)


class OpenStreams:
    """The number of open streams, of topics and of their subscriptions, in this broker and in all others."""

    def __init__(self, roster: Roster, peers: Peers, own: str) -> None:
        self._roster, self._peers, self._own = roster, peers, own
        self._here: Counter[Topic] = Counter()
        self._asking: dict[Topic, asyncio.Task[list[int | None]]] = {}

    @contextmanager
    def counting(self, topic: Topic) -> Iterator[None]:
        """Counts a stream for as long as the block runs."""
        self._here[topic] += 1
        try:
            yield
        finally:
            self._here[topic] -= 1
            if not self._here[topic]:
                del self._here[topic]

    def here(self, topic: Topic) -> int:
        """Returns how many streams this broker has."""
        return self._here[topic]

    async def everywhere(self, topic: Topic) -> tuple[int, int]:
        """Returns how many streams all brokers have, and how many brokers did not tell theirs within COUNT_S. All who
        ask at once about a topic share the calls."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._elsewhere(topic))
            asking.add_done_callback(lambda _: self._asking.pop(topic))
        told = await asyncio.shield(asking)
        counts = [count for count in told if count is not None]
        return self.here(topic) + sum(counts), len(told) - len(counts)

    async def _elsewhere(self, topic: Topic) -> list[int | None]:
        urls = [known.record.url for id, known in self._roster.brokers.items() if id != self._own]
        return await gather_bounded(ASKED, partial(self._at, topic), urls)

    async def _at(self, topic: Topic, url: str) -> int | None:
        call = TopicCall(topic.name, topic.record.incarnation)
        try:
            return await self._peers.call(url, COUNT, call, int, COUNT_S)
        except NotOwner:  # it does not know the topic
            return 0
        except SeaweedqError:
            return None


class Streaming(Service):
    """The streams of `topics`, which all end with their watches, and those of `subscriptions`; `open` counts both."""

    def __init__(self, context: Context, reading: Reading, subscribing: Subscribing, uploading: Uploading) -> None:
        catalog, readables = context.catalog, reading.readables
        self.watches = TailWatches(catalog, readables)
        self.topics = TopicStreams(catalog, readables, reading.positions, self.watches)
        self.subscriptions = SubscriptionStreams(
            context.broker,
            subscribing.admin,
            subscribing.dispatcher,
            subscribing.finder,
            uploading.payloads,
            context.peers,
        )
        self.open = OpenStreams(context.roster, context.peers, context.broker)

    def begin_stop(self) -> None:
        """Ends all streams, also those that begin later."""
        self.watches.end()
