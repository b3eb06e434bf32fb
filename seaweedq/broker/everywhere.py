"""What concerns a whole topic, at all the brokers that own segments of it: where they stand, flush, close.

Each owner is asked for its own segments; segments that changed hands meanwhile, or whose owner does not answer, are
asked for again, until the time is over. So an answer is complete, or there is none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from seaweedq.broker.catalog import Catalog, Topic
from seaweedq.broker.flush import Flusher
from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.ownership import Ownership
from seaweedq.broker.peers import Peers
from seaweedq.broker.read import Reader
from seaweedq.broker.wire import Id, TopicName
from seaweedq.clock import Clock
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, NotReady, Unavailable

PAUSE_S = 0.1
CALL_MARGIN_S = 1.0
LOOK_S = 0.5
T = TypeVar("T")


class TopicCall(msgspec.Struct, array_like=True):
    """A topic, as one broker names it to another; `sizes` and `flush` are wanted too where they are true."""

    topic: TopicName
    incarnation: Id
    sizes: bool = False
    flush: bool = False


class Position(msgspec.Struct, array_like=True):
    """Where a segment stands: offsets, and the bytes of its files and tail where they were asked for."""

    segment: int
    flushed: int
    end: int
    size_bytes: int = 0


class Everywhere:
    """Asks the owners of a topic's segments, this broker among them."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        roster: Roster,
        membership: Membership,
        peers: Peers,
        reader: Reader,
        flusher: Flusher,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._roster = roster
        self._membership = membership
        self._peers = peers
        self._reader = reader
        self._flusher = flusher
        self._clock = clock
        self._timeout_s = timeout_s

    async def positions(self, topic: Topic, sizes: bool = False, flush: bool = False) -> dict[int, Position]:
        """All segments by id; with `flush` after everything acknowledged before the call is in files. Raises
        Unavailable, TopicBeingDeleted."""
        call = TopicCall(topic.name, topic.record.incarnation, sizes, flush)
        end_s = self._clock.monotonic_s() + self._timeout_s
        found: dict[int, Position] = {}
        await self._catalog.whole(topic)
        while missing := self._missing(topic, found):
            seen = topic.moved.count
            self._catalog.check(topic)
            left_s = end_s - self._clock.monotonic_s()
            asked = (self._ask(owner, topic, call, left_s) for owner in missing)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for answer in answers:
                if not isinstance(answer, BaseException):
                    found |= {position.segment: position for position in answer}
                elif not isinstance(answer, Unavailable):
                    raise answer
            if self._missing(topic, found):
                left_s = end_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise next((a for a in answers if isinstance(a, Unavailable)), NotOwner("owners are changing"))
                if topic.moved.count == seen:
                    await topic.moved.wait(min(PAUSE_S, left_s))
        return found

    async def own(self, topic: Topic, sizes: bool = False, flush: bool = False) -> list[Position]:
        """This broker's part of the answer."""
        segments = await self._ownership.mine(topic)
        if flush:
            await asyncio.gather(*(self._flusher.flush(segment, self._timeout_s) for segment in segments))
        found = [await self._position(segment, sizes) for segment in segments]
        if not self._membership.valid():
            raise NotReady("this broker's lease has run out")
        return found

    async def close(self, topic: Topic, here: Callable[[], Awaitable[None]]) -> None:
        """Have all living owners close a topic that is being deleted; `here` does it on this broker."""
        await self._catalog.reread(topic)
        owners = {record.owner for record in self._catalog.segments(topic).values()}
        call = TopicCall(topic.name, topic.record.incarnation)
        for owner in owners - {self._membership.broker}:
            if url := self._roster.url(owner):
                try:
                    await self._call(owner, url, "close", call, bool, self._timeout_s)
                except Unavailable:
                    if owner is None or await self._roster.gone(owner):
                        continue
                    raise
        await here()

    def _missing(self, topic: Topic, found: dict[int, Position]) -> set[str | None]:
        return {record.owner for number, record in self._catalog.segments(topic).items() if number not in found}

    async def _ask(self, owner: str | None, topic: Topic, call: TopicCall, left_s: float) -> list[Position]:
        if owner == self._membership.broker:
            return await self.own(topic, call.sizes, call.flush)
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"{owner}, who owns segments of {topic.name!r}, is gone", owner=owner)
        return await self._call(owner, url, "positions", call, list[Position], left_s + CALL_MARGIN_S)

    async def _call(
        self, owner: str | None, url: str, path: str, call: TopicCall, answer: type[T], timeout_s: float
    ) -> T:
        """Wait for an owner's answer for as long as it lives: one that stands still does not answer."""
        asking = asyncio.create_task(self._peers.call(url, path, call, answer, timeout_s))
        try:
            while not (await asyncio.wait([asking], timeout=LOOK_S))[0]:
                if not self._roster.alive(owner):
                    raise Unavailable(f"{owner}, who was asked, has gone, and has not answered")
            return asking.result()
        finally:
            asking.cancel()

    async def _position(self, segment: OpenSegment, sizes: bool) -> Position:
        size = await self._reader.size_since(segment, 0) if sizes else 0
        return Position(segment.id, segment.tail.start, segment.end, size)
