"""Segments of a topic as their readers see them, wherever they are: this broker's own, sealed ones, which every broker
reads from their files, and those of other brokers, which it reads by calls to their owners. Dispatching, lag and starts
read through them.

The end of a remote segment is the one that its owner reported last: a lower bound, since ends only rise. While a topic
is read it is kept current by one long poll for each owner; a caller that must not miss a message asks again
(`refresh`). An owner that does not answer is *unreachable*: its segments are left out, and it is asked in the
background until it answers.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.open_segment import OpenSegment, time_of
from seaweedq.broker.log.reader import Pieces, Reader
from seaweedq.broker.read.cluster_time import ClusterTime
from seaweedq.broker.read.sealed_reader import SealedReader
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import EndsCall, SegmentCall, SegmentRows
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.broker.topics.segment_index import Records, starts_at
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import gather_bounded, mark_retrieved
from seaweedq.errors import NotOwner, SeaweedqError, SegmentNotFound, Unavailable
from seaweedq.segments.chain import RemoteSizeHistory
from seaweedq.segments.layout import Layout

CALL_S = 5.0
MAX_WAIT_S = 10.0  # of a long poll
PAUSE_S = 0.2
FOLLOW_S = 0.002  # between two long polls: the next answer of a busy owner covers the rows between
SEARCHES = 16  # concurrent searches for a time
LINGER_S = 10.0  # the long polls of a topic end when nobody has read it for so long
Ends: TypeAlias = tuple[set[int], set[int]]  # the numbers of segments whose ends are known now, and of disputed ones
T = TypeVar("T")


class Readable(Protocol):
    """A segment that can be read. Every method raises Unavailable if its owner has changed or cannot be asked."""

    @property
    def id(self) -> int:
        """The segment's number."""

    @property
    def layout(self) -> Layout:
        """The layout of its rows."""

    @property
    def end(self) -> int:
        """The offset above the last durable one, as far as it is known here; it only rises."""

    @property
    def certain(self) -> bool:
        """Whether `end` is the end now, and not the one that the owner reported last."""

    def is_in_memory(self, offset: int) -> bool:
        """Whether rows from `offset` on are read without a file or another broker."""

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns up to `limit` rows from `offset` on, about `max_bytes` at most but at least one row; fewer at the
        end, and if the store is slow."""

    async def find(self, timestamp_us: int) -> int:
        """Returns the first offset whose `_timestamp` reaches this, or the end."""

    async def size_since(self, offset: int) -> int:
        """Returns about how many bytes the rows from `offset` on take."""


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment of this broker, or a sealed one."""

    id: int
    topic: Topic
    segment: OpenSegment
    reader: Reader
    cached: SealedReader | None
    certain: bool = True

    @property
    def layout(self) -> Layout:
        """The layout of its rows."""
        return self.segment.layout

    @property
    def end(self) -> int:
        """The offset above the last durable one."""
        return self.segment.tail.end

    def is_in_memory(self, offset: int) -> bool:
        """Whether rows from `offset` on are in the tail."""
        return offset >= self.segment.tail.start

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows from `offset` on."""
        if self.cached and self.segment.sealed:
            return await self.cached.read(self.topic, self.segment, offset, limit, max_bytes)
        return await self.reader.read(self.segment, offset, limit, max_bytes)

    async def find(self, timestamp_us: int) -> int:
        """Returns the first offset whose `_timestamp` reaches this, or the end."""
        return await self.reader.find(self.segment, timestamp_us)

    async def size_since(self, offset: int) -> int:
        """Returns about how many bytes the rows from `offset` on take."""
        return sum(await self.reader.sizes_since(self.segment, offset))


@dataclass(eq=False)
class _RemoteTopic:
    """The known segments of a topic that other brokers own, and the owners that do not answer."""

    seen: int = -1  # count of topic.moved when `segments` was made
    segments: dict[int, "RemoteSegment"] = field(default_factory=dict)
    owners: list[str | None] = field(default_factory=list)  # in the order of their segments
    unreachable: set[str | None] = field(default_factory=set)
    read_s: float = 0.0  # time of the last read, monotonic
    asking: dict[str | None, "asyncio.Task[Ends]"] = field(default_factory=dict)
    to_ask: dict[str | None, "asyncio.Task[Ends]"] = field(default_factory=dict)
    following: dict[str | None, asyncio.Task[None]] = field(default_factory=dict)
    probing: dict[str | None, asyncio.Task[None]] = field(default_factory=dict)

    def ends_of(self, owner: str | None) -> dict[int, int]:
        """Returns the known ends of an owner's segments."""
        return {number: segment.end for number, segment in self.segments.items() if segment.owner == owner}


class RemoteSegment:
    """An open segment of another broker; `Readable`."""

    certain = False

    def __init__(self, readables: "ReadableSegments", topic: Topic, number: int, owner: str | None, end: int) -> None:
        self.id = number
        self.owner = owner
        self.end = end
        self.size_history = RemoteSizeHistory()
        self._readables = readables
        self._topic = topic

    @property
    def layout(self) -> Layout:
        """The layout of its rows."""
        return self._topic.layout

    def is_in_memory(self, offset: int) -> bool:
        """Always false."""
        return False

    async def read(self, offset: int, limit: int, max_bytes: int) -> Pieces:
        """Returns rows from `offset` on. Raises Unavailable."""
        lending = await self._ask("read", SegmentRows, offset=offset, limit=limit, max_bytes=max_bytes)
        self.end = max(self.end, lending.end)
        pieces = lending.rows(await self._readables.layout(self._topic, lending.schema_id))
        for first, rows in pieces:
            self.size_history.record_size(rows.num_rows, rows.nbytes)
            self.size_history.record_arrival(first, time_of(rows, 0))
        return pieces

    async def find(self, timestamp_us: int) -> int:
        """Returns the first offset whose `_timestamp` reaches this, or the end. Raises Unavailable."""
        return await self._ask("find", int, timestamp_us=timestamp_us)

    async def size_since(self, offset: int) -> int:
        """Returns about how many bytes the rows from `offset` on take. Raises Unavailable."""
        return await self._ask("size", int, offset=offset)

    async def _ask(self, path: str, answer: type[T], **what: int) -> T:
        call = SegmentCall(self._topic.name, self._topic.record.incarnation, self.id, **what)
        return await self._readables.ask(self._topic, self.owner, path, call, answer, CALL_S)


class ReadableSegments:
    """The segments of all topics that this broker can read; `time` says which of their messages have expired."""

    def __init__(
        self, view: ClusterView, ownership: Ownership, reader: Reader, cached: SealedReader | None, peers: Peers
    ) -> None:
        self._cached = cached
        self._catalog = view.catalog
        self._ownership = ownership
        self._roster = view.roster
        self._membership = view.membership
        self._reader = reader
        self._peers = peers
        self._clock = view.clock
        self._closed = False
        self._topics: dict[Topic, _RemoteTopic] = {}
        self.time = ClusterTime(view.clock, view.roster, view.membership.broker, peers)

    def records(self, topic: Topic) -> Records:
        """Returns the records of a topic's segments, as they are known here."""
        return self._catalog.records(topic)

    def start_offsets(self, topic: Topic) -> dict[int, int]:
        """Returns the start offsets of the segments that do not begin at 0."""
        return self._catalog.start_offsets(topic)

    def known_ends(self, topic: Topic) -> dict[int, int]:
        """Returns the ends of a topic's segments, as far as they are known here without asking anybody."""
        ends = {number: self.known_end(topic, number) for number in self._catalog.records(topic)}
        return {number: end for number, end in ends.items() if end is not None}

    def known_end(self, topic: Topic, number: int) -> int | None:
        """Returns the end of a segment as it is known here, or None."""
        known = self._catalog.records(topic).get(number)
        if known is None or known.record.end_offset is not None:
            return known.record.end_offset if known else None
        if opened := topic.opened.get(number):
            return opened.end
        remote = self._topics.get(topic)
        segment = remote.segments.get(number) if remote else None
        return segment.end if segment else None

    def weigh(self, topic: Topic, number: int, offset: int) -> tuple[int, int | None]:
        """Returns about how many bytes the rows of a segment from `offset` on take, and when the first one came, or
        later; None if that is not known. It asks nobody."""
        if opened := topic.opened.get(number):
            return opened.weigh(offset)
        remote = self._topics.get(topic)
        segment = remote.segments.get(number) if remote else None
        if segment is None or offset >= segment.end:
            return 0, None
        return segment.size_history.size_of_rows(segment.end - offset), segment.size_history.arrival_us(offset)

    async def check_lives(self) -> None:
        """Raises NotReady if this broker's lease has ended, though it may not have noticed; CoordinationUnavailable."""
        await self._membership.check_lives()

    def check_whole(self, topic: Topic) -> None:
        """Raises NeedsNewerBroker if a segment of the topic cannot be read."""
        self._catalog.check_whole(topic)

    async def available(self, topic: Topic, numbers: Collection[int]) -> tuple[list[Readable], set[int]]:
        """Returns those of these segments that can be read now, in their order, and the numbers of the others."""
        remote = self._remote(topic)
        remote.read_s = self._clock.monotonic_s()
        for owner in () if self._closed else remote.owners:
            if owner not in remote.following:
                self._spawn(remote.following, owner, self._follow(topic, remote, owner))
            if owner in remote.unreachable and owner not in remote.probing:
                self._spawn(remote.probing, owner, self._probe(topic, remote, owner))
        if cold := [n for n in numbers if n not in topic.opened and n not in remote.segments]:
            await asyncio.gather(*(self._open(topic, number) for number in cold))
        found: list[Readable] = []
        missing: set[int] = set()
        for number in numbers:
            if elsewhere := remote.segments.get(number):
                if elsewhere.owner not in remote.unreachable:
                    found.append(elsewhere)
                    continue
            elif (segment := topic.opened.get(number)) and not segment.closed:
                found.append(LocalSegment(number, topic, segment, self._reader, self._cached))
                continue
            missing.add(number)
        return found, missing

    async def every(self, topic: Topic, numbers: Collection[int]) -> dict[int, Readable]:
        """Returns all of these segments by id, and waits for those that are locked. Raises NotOwner if one cannot be
        read."""
        missing: Collection[int] = numbers
        async for attempt in Deadline(self._clock, CALL_S).attempts(topic.signal, PAUSE_S):
            found, missing = await self.available(topic, numbers)
            if not missing:
                return {segment.id: segment for segment in found}
            if not attempt.is_last():
                await self.refresh(topic, missing)
        raise NotOwner(
            f"segments {sorted(missing)[:10]} of topic {topic.name!r} could not be read within {CALL_S:g} s; try again"
        )

    async def layout(self, topic: Topic, schema_id: int) -> Layout:
        """Returns the layout of a version of a topic's schema. Raises NotReady."""
        return await self._catalog.layout(topic, schema_id)

    async def find(self, topic: Topic, ends: Mapping[int, int], timestamp_us: int) -> dict[int, int]:
        """Returns the offset to begin at in each of these segments, given their ends, so that no message from the first
        one on whose time reaches this is missed. Raises Unavailable."""
        segments = await self.every(topic, ends)
        found = await gather_bounded(SEARCHES, lambda segment: segment.find(timestamp_us), segments.values())
        offsets = starts_at(self._catalog.records(topic), ends, dict(zip(segments, found, strict=True)))
        return {
            number: max(offset, self._catalog.start(topic, number).first_offset) for number, offset in offsets.items()
        }

    async def refresh(self, topic: Topic, numbers: Iterable[int]) -> set[int]:
        """Asks the owners of these segments for the ends of all of theirs. Returns the numbers of the segments whose
        end is known now."""
        remote, wanted = self._remote(topic), set(numbers)
        owners = dict.fromkeys(remote.segments[n].owner for n in sorted(wanted & remote.segments.keys()))
        answers = await asyncio.gather(
            *(self._ends_now(topic, remote, owner) for owner in owners), return_exceptions=True
        )
        known: set[int] = set()
        for answer in answers:
            if not isinstance(answer, BaseException):
                known |= answer[0]
            elif not isinstance(answer, Unavailable):
                raise answer
        await self._refresh_records(topic, remote, (wanted - known) & remote.segments.keys())
        return known

    def forget(self, topic: Topic) -> None:
        """Forgets a topic that nobody reads here any more."""
        remote = self._topics.pop(topic, None)
        for task in [*remote.following.values(), *remote.probing.values()] if remote else []:
            task.cancel()

    def close(self) -> None:
        """Ends all long polls; a request that is still under way begins none."""
        self._closed = True
        for topic in list(self._topics):
            self.forget(topic)

    async def ask(self, topic: Topic, owner: str | None, path: str, call: Any, answer: type[T], timeout_s: float) -> T:
        """Returns an owner's answer to a call. Raises Unavailable, and marks the owner as unreachable unless the error
        is its own answer."""
        remote = self._remote(topic)
        url = self._roster.url(owner)
        try:
            if url is None:
                raise Unavailable(f"broker {owner}, which owns segments of topic {topic.name!r}, is no longer running")
            return await self._peers.call(url, path, call, answer, timeout_s)
        except NotOwner:
            if isinstance(call, SegmentCall):
                await self._catalog.refresh(topic.name, call.segment)
            raise
        except Unavailable:
            remote.unreachable.add(owner)
            raise

    async def _open(self, topic: Topic, number: int) -> None:
        with suppress(Unavailable, SegmentNotFound):
            await self._ownership.open(topic, number)

    def _remote(self, topic: Topic) -> _RemoteTopic:
        """Returns the known state of a topic, brought up to date with the owners of now."""
        remote = self._topics.setdefault(topic, _RemoteTopic())
        if remote.seen == topic.moved.count:
            return remote
        remote.seen = topic.moved.count
        owners = {
            number: known.record.owner
            for number, known in sorted(self._catalog.records(topic).items())
            if known.record.state == "open" and known.record.owner != self._membership.broker
        }
        for number in remote.segments.keys() - owners.keys():
            del remote.segments[number]
        for number, owner in owners.items():
            known = remote.segments.get(number)
            if known is None or known.owner != owner:
                remote.segments[number] = RemoteSegment(self, topic, number, owner, known.end if known else 0)
        remote.owners = list(dict.fromkeys(owners.values()))
        remote.unreachable.intersection_update(remote.owners)
        return remote

    async def _ends(self, topic: Topic, remote: _RemoteTopic, owner: str | None, wait_s: float) -> Ends:
        """Takes in an owner's ends. Returns the numbers that are known now, and those about which the two brokers
        disagree. Raises Unavailable."""
        call = EndsCall(topic.name, topic.record.incarnation, remote.ends_of(owner), wait_s)
        ends = await self.ask(topic, owner, "ends", call, dict[int, int], wait_s + CALL_S)
        remote.unreachable.discard(owner)
        rises = [(segment, end) for n, end in ends.items() if (segment := remote.segments.get(n)) and end > segment.end]
        now_us = self._clock.now_us()
        for segment, end in rises:
            segment.size_history.record_arrival(segment.end, now_us)
            segment.end = end
        if rises:
            topic.signal.wake()
        return ends.keys() & remote.segments.keys(), ends.keys() ^ remote.ends_of(owner).keys()

    async def _ends_now(self, topic: Topic, remote: _RemoteTopic, owner: str | None) -> Ends:
        """Takes in an owner's ends as they are after this call begins. All callers while another call is under way
        share the next one: thousands of pulls that begin to wait are a few calls."""
        task = remote.to_ask.get(owner)
        if task is None:
            task = asyncio.create_task(self._ask_next(topic, remote, owner), name=f"asking {owner} for ends")
            task.add_done_callback(mark_retrieved)  # the callers may have gone
            remote.to_ask[owner] = task
        return await asyncio.shield(task)

    async def _ask_next(self, topic: Topic, remote: _RemoteTopic, owner: str | None) -> Ends:
        task = asyncio.current_task()
        assert task
        try:
            if before := remote.asking.get(owner):
                await asyncio.wait([before])
        finally:
            del remote.to_ask[owner]  # a caller from here on gets a later call
        remote.asking[owner] = task
        try:
            return await self._ends(topic, remote, owner, 0)
        finally:
            if remote.asking.get(owner) is task:
                del remote.asking[owner]

    async def _refresh_records(self, topic: Topic, remote: _RemoteTopic, missing: Iterable[int]) -> None:
        """Reads the records of segments that their owner, which answers, does not name: they have another owner or are
        sealed, and the watch may be behind."""
        for number in missing:
            segment = remote.segments.get(number)
            if segment is None or segment.owner not in remote.unreachable:
                await self._catalog.refresh(topic.name, number)

    async def _follow(self, topic: Topic, remote: _RemoteTopic, owner: str | None) -> None:
        while self._clock.monotonic_s() - remote.read_s < LINGER_S and owner in self._remote(topic).owners:
            pause_s = FOLLOW_S
            try:
                _, mismatched = await self._ends(topic, remote, owner, MAX_WAIT_S)
                if mismatched:
                    await self._refresh_records(topic, remote, mismatched)
                    pause_s = PAUSE_S
            except Unavailable:
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)

    async def _probe(self, topic: Topic, remote: _RemoteTopic, owner: str | None) -> None:
        while owner in remote.unreachable:
            with suppress(Unavailable):
                await self._ends(topic, remote, owner, 0)
                topic.signal.wake()
            await asyncio.sleep(PAUSE_S)

    def _spawn(self, tasks: dict[str | None, asyncio.Task[None]], owner: str | None, work: Any) -> None:
        async def run() -> None:
            try:
                with suppress(SeaweedqError):  # the topic is being deleted: its next reader gets the error
                    await work
            finally:
                tasks.pop(owner, None)

        tasks[owner] = asyncio.create_task(run(), name=f"reading at {owner}")
