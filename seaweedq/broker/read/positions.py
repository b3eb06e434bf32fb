"""The positions of segments: those of a broker's own, and those of a whole topic, for which each owner is asked.

Requests that concern a whole topic (positions, flush, close) go to all brokers that own segments. Segments that change
owner meanwhile, are sealed, or whose owner does not answer are asked for again until the timeout, so an answer is
complete or there is none. Nobody is asked for a sealed segment: its record has its end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from seaweedq.broker.context import ClusterView
from seaweedq.broker.load import Loads, SegmentRates, segment_rates
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Reader
from seaweedq.broker.rpc.client import Peers, ask_while
from seaweedq.broker.rpc.messages import TopicCall
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import NeedsNewerBroker, NotOwner, NotReady, Unavailable

PAUSE_S = 0.1
CALL_MARGIN_S = 1.0
SEALED = 16  # sealed segments whose sizes are read concurrently
T = TypeVar("T")


class Position(msgspec.Struct, array_like=True):
    """The offsets of a segment; and where they were asked for, the bytes of its files, as stored, and of its tail, as
    in memory. The position of an open segment comes with the load that its owner has observed. With the bytes comes
    `file_us`, when its newest file was written; None if it has none."""

    segment: int
    flushed: int
    end: int
    size_bytes: int = 0
    observed: SegmentRates | None = None
    file_us: int | None = None
    tail_bytes: int = 0


class LocalPositions:
    """Answers for the segments that this broker owns. `timeout_s` is how long one entry of a flush may take while the
    store refuses it."""

    def __init__(
        self,
        view: ClusterView,
        ownership: Ownership,
        reader: Reader,
        flusher: Flusher,
        loads: Loads,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._membership = view.membership
        self._clock = view.clock
        self._ownership = ownership
        self._reader = reader
        self._flusher = flusher
        self._loads = loads
        self._timeout_s = timeout_s

    async def positions(self, topic: Topic, sizes: bool = False, flush: bool = False) -> list[Position]:
        """Returns the positions of a topic's segments. A locked segment is left out: it is about to change its
        owner, or to be replaced."""
        segments = [segment for segment in await self._ownership.mine(topic) if not segment.closed]
        if flush:
            await asyncio.gather(*(self._flusher.flush(segment, self._timeout_s) for segment in segments))
        loads = segment_rates(topic, self._catalog.records(topic), self._loads.by_segment(topic), self._clock.now_us())
        found = {segment: await self.position(segment, sizes) for segment in segments}
        for segment, position in found.items():
            position.observed = loads.get(segment.id, SegmentRates())
        if not self._membership.valid():
            raise NotReady("this broker's lease has expired")
        return [position for segment, position in found.items() if not segment.closed]

    async def position(self, segment: OpenSegment, sizes: bool) -> Position:
        """Returns where an opened segment stands, with its bytes if `sizes` asks for them."""
        files, tail = await self._reader.sizes_since(segment, 0) if sizes else (0, 0)
        last = segment.chain.last if sizes and segment.tail.start else None  # before it, all files are without rows
        written = last.appended_us if last else None
        return Position(segment.id, segment.tail.start, segment.end, files, file_us=written, tail_bytes=tail)


class TopicPositions:
    """Asks the owners of a topic's segments, this broker among them."""

    def __init__(
        self,
        view: ClusterView,
        ownership: Ownership,
        peers: Peers,
        local: LocalPositions,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._ownership = ownership
        self._roster = view.roster
        self._membership = view.membership
        self._peers = peers
        self._local = local
        self._clock = view.clock
        self._timeout_s = timeout_s

    async def positions(self, topic: Topic, sizes: bool = False, flush: bool = False) -> dict[int, Position]:
        """Returns the positions of all segments by id, sealed ones too; with `flush` after everything that was
        acknowledged before the call is in files.

        They belong to one set of records: of the messages of any key, those below the positions come before all others,
        also where segments are replaced meanwhile. A caller that needs the records takes them at once, before it awaits
        anything. (With `sizes` they may be newer.) Raises Unavailable, TopicBeingDeleted.
        """
        call = TopicCall(topic.name, topic.record.incarnation, sizes, flush)
        deadline = Deadline(self._clock, self._timeout_s)
        found: dict[int, Position] = {}
        failure: Unavailable | None = None
        await self._catalog.know_predecessors(topic)
        async for attempt in deadline.attempts(topic.moved, PAUSE_S):
            try:
                await self._catalog.whole(topic)
                if missing := self._missing(topic, found):
                    attempt.mark()
                    failure = await self._ask_all(topic, missing, call, found, deadline.left_s)
                    await self._catalog.whole(topic)
                if not (missing := self._missing(topic, found)):
                    break
            except NeedsNewerBroker:
                raise
            except Unavailable as error:
                failure = error
        else:
            raise failure or NotOwner(
                f"segments {sorted(chain(*missing.values()))[:10]} of {topic.name!r} kept changing owner for "
                f"{self._timeout_s:g} s; try again"
            )
        records = self._catalog.segments(topic)
        ends = {n: record.end_offset or 0 for n, record in records.items() if record.state == "sealed"}
        standing = {n: Position(n, ends[n], ends[n]) if n in ends else found[n] for n in records}
        return await self._with_sizes(topic, standing) if sizes else standing

    async def close(self, topic: Topic, here: Callable[[], Awaitable[None]]) -> None:
        """Makes all living owners close a topic that is being deleted; `here` closes it on this broker."""
        await self._catalog.reread(topic)
        owners = dict.fromkeys(record.owner for record in self._catalog.segments(topic).values())
        if self._catalog.unreadable_of(topic):  # whoever has those
            owners |= dict.fromkeys(self._roster.brokers)
        call = TopicCall(topic.name, topic.record.incarnation)
        for owner in owners:
            if owner != self._membership.broker and (url := self._roster.url(owner)):
                try:
                    await self._call(owner, url, "close", call, bool, self._timeout_s)
                except Unavailable:
                    if owner is None or await self._roster.gone(owner):
                        continue
                    raise
        await here()

    def _missing(self, topic: Topic, found: Mapping[int, Position]) -> dict[str | None, list[int]]:
        """Returns the open segments that are still to be asked for, by owner."""
        missing: dict[str | None, list[int]] = {}
        for number, record in self._catalog.segments(topic).items():
            if record.state == "open" and number not in found:
                missing.setdefault(record.owner, []).append(number)
        return missing

    async def _ask_all(
        self,
        topic: Topic,
        missing: Mapping[str | None, Sequence[int]],
        call: TopicCall,
        found: dict[int, Position],
        left_s: float,
    ) -> Unavailable | None:
        """Adds to `found` what the owners of missing segments answer. Returns the error of one that did not answer. A
        segment that its owner does not name may have another owner, or be sealed: its record is read again, since the
        watch may be behind."""
        trouble = None
        answers = await asyncio.gather(
            *(self._ask(owner, topic, call, left_s) for owner in missing), return_exceptions=True
        )
        for owner, answer in zip(missing, answers, strict=True):
            if isinstance(answer, Unavailable):
                trouble = trouble or answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found |= {position.segment: position for position in answer}
                if owner != self._membership.broker:
                    for number in set(missing[owner]) - found.keys():
                        await self._catalog.look(topic.name, number)
        return trouble

    async def _with_sizes(self, topic: Topic, standing: dict[int, Position]) -> dict[int, Position]:
        """Returns the positions with the sizes of sealed segments."""

        async def sized(position: Position) -> Position:
            if self._catalog.segment(topic, position.segment).record.state == "open" or not position.end:
                return position
            segment = await self._ownership.opened(topic, position.segment)
            return await self._local.position(segment, sizes=True)

        return {position.segment: position for position in await gather_bounded(SEALED, sized, standing.values())}

    async def _ask(self, owner: str | None, topic: Topic, call: TopicCall, left_s: float) -> list[Position]:
        if owner == self._membership.broker:
            return await self._local.positions(topic, call.sizes, call.flush)
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"broker {owner}, which owns segments of {topic.name!r}, no longer lives", owner=owner)
        return await self._call(owner, url, "positions", call, list[Position], left_s + CALL_MARGIN_S)

    async def _call(
        self, owner: str | None, url: str, path: str, call: TopicCall, answer: type[T], timeout_s: float
    ) -> T:
        """Returns the answer of an owner, which is asked for as long as it lives: one that hangs does not answer."""
        asking = self._peers.call(url, path, call, answer, timeout_s)
        return await ask_while(lambda: self._roster.check_alive(owner), asking)
