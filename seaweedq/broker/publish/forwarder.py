"""Forwarding is publishing: how rows reach the owner of their segment, and what makes a repeat known there.

A *slot* is an identity under which this broker publishes rows of clients that gave none: a producer
`~{broker}.{segment}.{n}`, after the segment first tried, whose name it keeps at that one's successors. A slot carries
one piece at a time until its fate is known or given up, so its sequences arrive in order, and a repeat, also at the
segment's next owner, is known as one. Several slots go at a time; messages in flight together have no order among them.

A *link* carries what waits for one owner in few requests: while some are under way the next gathers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.forward_frames import Outcome, Parcel, encode
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import SeaweedqError, Unavailable
from seaweedq.futures import fail, resolve
from seaweedq.segments.producers import FORWARD, Sequences

SLOTS = 8
FLIGHTS = 4
FORWARD_BYTES = 8 * 1024 * 1024
_outcomes = msgspec.msgpack.Decoder(list[Outcome])


class Slot:
    """One identity in one segment. `next` is the sequence that it gives out next."""

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._next = 0

    def sequences(self, count: int) -> Sequences:
        """The next `count` sequences."""
        low, self._next = self._next, self._next + count
        return Sequences(self._producer, low, self._next - 1)


class _Segment:
    """The slots of one segment: free ones, and who may take or make one."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(SLOTS)
        self.free: list[Slot] = []
        self.made = 0


class Slots:
    """The slots of a broker, by segment."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._segments: dict[tuple[Topic, int], _Segment] = {}

    @asynccontextmanager
    async def take(self, topic: Topic, segment: int, timeout_s: float) -> AsyncIterator[Slot]:
        """A slot that nobody else uses meanwhile. Raises Unavailable where none is free in time."""
        known = self._segments.setdefault((topic, segment), _Segment())
        try:
            async with asyncio.timeout(timeout_s):
                await known.places.acquire()
        except TimeoutError:
            detail = f"segment {segment} of {topic.name!r} has not answered those before within {timeout_s:g} s"
            raise Unavailable(f"{detail}; nothing was taken") from None
        if not known.free:
            known.free.append(Slot(f"{FORWARD}{self._broker}.{segment}.{known.made}"))
            known.made += 1
        slot = known.free.pop()
        try:
            yield slot
        finally:
            known.free.append(slot)
            known.places.release()

    def forget(self, topic: Topic) -> None:
        """A topic is gone."""
        for key in [key for key in self._segments if key[0] is topic]:
            del self._segments[key]


class _Link:
    """What goes to one broker."""

    def __init__(self, peers: Peers, url: str, timeout_s: float) -> None:
        self._peers = peers
        self._url = url
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[Parcel, asyncio.Future[Outcome]]] = deque()
        self._flights: set[asyncio.Task[None]] = set()

    def add(self, parcel: Parcel) -> asyncio.Future[Outcome]:
        """Send a parcel with what else waits."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((parcel, done))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._depart)
        return done

    def _depart(self) -> None:
        while self._waiting and len(self._flights) < FLIGHTS:
            taken, size = [], 0
            while self._waiting and size < FORWARD_BYTES:
                parcel, done = self._waiting.popleft()
                if not done.done():
                    taken.append((parcel, done))
                    size += parcel.header.length
            if taken:
                flight = asyncio.create_task(self._fly(taken), name=f"forward to {self._url}")
                self._flights.add(flight)
                flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._depart()

    async def _fly(self, taken: list[tuple[Parcel, asyncio.Future[Outcome]]]) -> None:
        error: Exception = Unavailable("a forward was broken off", inside=self._url)
        outcomes: list[Outcome] = []
        try:
            body = encode([parcel for parcel, _ in taken])
            outcomes = _outcomes.decode(await self._peers.post(self._url, "publish", body, self._timeout_s))
        except (SeaweedqError, msgspec.DecodeError) as failed:
            error = failed if isinstance(failed, SeaweedqError) else _unreadable(self._url, failed)
        finally:
            for at, (_, done) in enumerate(taken):
                _settle(done, outcomes[at] if at < len(outcomes) else None, error)


def _unreadable(url: str, error: Exception) -> Unavailable:
    return Unavailable("another broker answers in another way", inside=f"{url}: {error}")


def _settle(done: asyncio.Future[Outcome], outcome: Outcome | None, error: Exception) -> None:
    if outcome is None or outcome.trouble:
        fail(done, outcome.trouble.error() if outcome and outcome.trouble else error)
    else:
        resolve(done, outcome)


class Outbound:
    """The links to all other brokers."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._peers = peers
        self._timeout_s = timeout_s
        self._links: dict[str, _Link] = {}

    def send(self, url: str, parcel: Parcel) -> asyncio.Future[Outcome]:
        """Forward a parcel to the broker at `url`. The future raises Unavailable where its fate is unknown."""
        link = self._links.get(url)
        if link is None:
            link = self._links[url] = _Link(self._peers, url, self._timeout_s)
        return link.add(parcel)
