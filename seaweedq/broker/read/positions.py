"""The positions of segments, those of a broker's own and those of a whole topic, and the files of a topic.

Requests that concern a whole topic (positions, flush, close) go to all brokers that own segments. Segments that change
owner meanwhile, are sealed, or whose owner does not answer are asked for again until the timeout, so an answer is
complete or there is none. Nobody is asked for a sealed segment: its record has its end.

Files come a page at a time, with all that a reader needs to plan a read without opening any of them. A page is one
listing of the topic's folder, so ten thousand files cost ten requests to the store, however many segments they are of.
Names tell the first offsets. The end of a file is told by the next one of its segment, or, of a segment's last file, by
the segment's position, which is asked for before the listing: a file that appears in between begins at or above that
position, and belongs to a later page of a later reader. Files without rows, files of segments that no record names,
files below a segment's start, which retention has taken, and objects of somebody else are left out.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeVar

import msgspec

from seaweedq.broker.context import ClusterView
from seaweedq.broker.load import Loads, SegmentRates, segment_rates
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Reader
from seaweedq.broker.rpc.client import Peers, ask_while
from seaweedq.broker.rpc.messages import TopicCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.errors import NeedsNewerBroker, NotOwner, NotReady, Unavailable
from seaweedq.segments.chain import EntryFacts
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.storage.interface import ListedObject, ObjectStore

PAUSE_S = 0.1
CALL_MARGIN_S = 1.0
SEALED = 16  # sealed segments whose sizes are read concurrently
T = TypeVar("T")


class Position(msgspec.Struct, array_like=True):
    """The offsets of a segment; and if they were asked for, the bytes of its files, as stored, and of its tail, as
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
        also if segments are replaced meanwhile. A caller that needs the records takes them at once, before it awaits
        anything. (With `sizes` they may be newer.) Raises Unavailable, TopicBeingDeleted.
        """
        call = TopicCall(topic.name, topic.record.incarnation, sizes, flush)
        deadline = Deadline(self._clock, self._timeout_s)
        found: dict[int, Position] = {}
        failure: Unavailable | None = None
        await self._catalog.load_predecessors(topic)
        async for attempt in deadline.attempts(topic.moved, PAUSE_S):
            try:
                await self._catalog.load_topic(topic)
                if missing := self._missing(topic, found):
                    attempt.mark()
                    failure = await self._ask_all(topic, missing, call, found, deadline.left_s)
                    await self._catalog.load_topic(topic)
                if not (missing := self._missing(topic, found)):
                    break
            except NeedsNewerBroker:
                raise
            except Unavailable as error:
                failure = error
        else:
            raise failure or NotOwner(
                f"segments {sorted(chain(*missing.values()))[:10]} of topic {topic.name!r} kept "
                f"changing owner for {self._timeout_s:g} s; try again"
            )
        records = self._catalog.segments(topic)
        ends = {n: record.end_offset or 0 for n, record in records.items() if record.state == "sealed"}
        standing = {n: Position(n, ends[n], ends[n]) if n in ends else found[n] for n in records}
        return await self._with_sizes(topic, standing) if sizes else standing

    async def close(self, topic: Topic, here: Callable[[], Awaitable[None]]) -> None:
        """Makes all living owners close a topic that is being deleted; `here` closes it on this broker."""
        await self._catalog.reload_segments(topic)
        owners = dict.fromkeys(record.owner for record in self._catalog.segments(topic).values())
        if self._catalog.unreadable_of(topic):  # any broker may have those
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
        """Adds the answers of the owners of missing segments to `found`. Returns the error of one that did not answer.
        A segment that its owner does not name may have another owner, or be sealed: its record is read again, since the
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
                        await self._catalog.refresh(topic.name, number)
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
            raise NotOwner(
                f"broker {owner}, which owns segments of topic {topic.name!r}, is no longer running", owner=owner
            )
        return await self._call(owner, url, "positions", call, list[Position], left_s + CALL_MARGIN_S)

    async def _call(
        self, owner: str | None, url: str, path: str, call: TopicCall, answer: type[T], timeout_s: float
    ) -> T:
        """Returns the answer of an owner, which is asked for as long as it lives: one that hangs does not answer."""
        asking = self._peers.call(url, path, call, answer, timeout_s)
        return await ask_while(lambda: self._roster.check_alive(owner), asking)


MOST = 1_000  # of a listing, as S3 has it
LEAST = 2  # files of a page that is not the last one
_PLACE = re.compile(r"topics/[^/]+/segment=(0|[1-9][0-9]{0,9})/([^/]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A file by its segment and its name, where a page goes on behind."""

    segment: int
    name: EntryName


@dataclass(frozen=True, slots=True)
class TopicFile:
    """A file with rows: its half-open range of offsets, its size, and its metadata as far as it is known here."""

    place: Place
    next_offset: int
    size: int
    facts: EntryFacts | None


class FilePages:
    """Pages of a topic's files."""

    def __init__(self, catalog: Catalog, positions: TopicPositions, store: ObjectStore) -> None:
        self._catalog = catalog
        self._positions = positions
        self._store = store

    async def page(
        self, topic: Topic, most: int, after: Place | None = None, segment: int | None = None
    ) -> tuple[list[TopicFile], Place | None]:
        """Returns the files among the next `most` objects, of one segment or of all, and where to go on; None at the
        end. Raises Unavailable, TopicBeingDeleted, NeedsNewerBroker."""
        self._catalog.check_whole(topic)
        flushed = {n: position.flushed for n, position in (await self._positions.positions(topic)).items()}
        prefix = f"topics/{topic.name}/" if segment is None else segment_folder(topic.name, segment)
        begin = f"{segment_folder(topic.name, after.segment)}{after.name}" if after else ""
        listed, cut = await self._listed(prefix, begin, most)
        self._catalog.check(topic)
        starts = self._catalog.start_offsets(topic)
        places = [place for place, _ in listed]
        found = [
            TopicFile(
                place,
                end,
                size,
                opened.chain.facts.get(place.name) if (opened := topic.opened.get(place.segment)) else None,
            )
            for (place, size), end in zip(listed, _ends(places, flushed, cut), strict=True)
            if place.name.first_offset < end and end > starts.get(place.segment, 0)
        ]
        return found, places[-2] if cut else None

    async def _listed(self, prefix: str, after: str, most: int) -> tuple[list[tuple[Place, int]], bool]:
        """Returns the files among the next objects, with their sizes, and whether there may be more: where the last
        one ends is told by the next page. There are two then at least, so that a reader gets on."""
        found: list[tuple[Place, int]] = []
        while True:
            page = await self._store.listed(prefix, after=after, limit=most)
            found += [(place, one.size) for one in page if (place := _place(one))]
            if len(page) < most or len(found) >= LEAST:
                return found, len(page) == most
            after = page[-1].name


def _ends(places: Sequence[Place], flushed: Mapping[int, int], cut: bool) -> list[int]:
    """Returns where each file ends, as far as it counts: 0 for one that is to be left out."""
    ends = []
    for place, behind in pairwise([*places, None]):
        assert place
        limit = flushed.get(place.segment, 0)
        if behind and behind.segment == place.segment:
            limit = min(limit, behind.name.first_offset)
        ends.append(0 if behind is None and cut else limit)
    return ends


def _place(listed: ListedObject) -> Place | None:
    """Returns None for an object of somebody else."""
    found = _PLACE.fullmatch(listed.name)
    name = EntryName.from_object(found[2]) if found else None
    return Place(int(found[1]), name) if found and name else None
