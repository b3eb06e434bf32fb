"""The leader: sees that every journal of the dead is recovered, every segment has a living owner, and load is even.

It is level triggered and keeps nothing that it can not read again: each round looks at how things are and does the next
step. Every transaction compares the leader's key, and the key of each broker that it names an owner; one that takes a
segment from a dead broker also compares that this one is gone and that its journal was recovered. Both are read again
before, since the views may be behind: a broker's keys were there before it owned anything, and never come back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from seaweedq.balancer.placement import Host, Move, SegmentId, assign, moves
from seaweedq.broker.catalog import Catalog, Topic
from seaweedq.broker.failpoints import reach
from seaweedq.broker.peers import Peers
from seaweedq.broker.takeover import Takeover
from seaweedq.broker.topics import TopicAdmin
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Change, Compare, Coordination, Put
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.roster import Roster
from seaweedq.errors import Fenced, SeaweedqError, Unavailable

PAGE = 40  # segments a transaction: twice that, their new owners and four more comparisons stay below 128
ROUND_S = 1.0
EVEN_S = 2.0
AGAIN_S = 1.0
SWEEP_S = 3600.0
DELETION_S = 5.0
MOVES = 64
GIVERS = 8
TOLERANCE = 0.3
CALL_S = 5.0
SETTLED_S = 30.0  # a segment that was moved stays where it is for so long
logger = logging.getLogger(__name__)


class GiveRequest(msgspec.Struct, array_like=True):
    """What the leader asks an owner: give this segment to `target`."""

    topic: str
    incarnation: int
    segment: int
    target: str


@dataclass(frozen=True, slots=True)
class _Homeless:
    segment: SegmentId
    record: SegmentRecord
    revision: int


class Leader:
    """One broker's leadership; `run` is its loop, which does nothing while another one leads."""

    def __init__(
        self,
        catalog: Catalog,
        roster: Roster,
        coordination: Coordination,
        election: Election,
        takeover: Takeover,
        admin: TopicAdmin,
        delete: Callable[[Topic], Awaitable[None]],
        peers: Peers,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._roster = roster
        self._coordination = coordination
        self._election = election
        self._takeover = takeover
        self._admin = admin
        self._delete = delete
        self._peers = peers
        self._clock = clock
        self._wake = asyncio.Event()
        self._recovering: dict[str, asyncio.Task[bool]] = {}
        self._not_before_s: dict[str, float] = {}
        self._moved_s: dict[SegmentId, float] = {}
        self._deleting_s: dict[Topic, float] = {}
        self._evened_s = self._swept_s = float("-inf")
        self._loads: dict[SegmentId, float] = {}

    def wake(self) -> None:
        """Something has changed: look at once."""
        self._wake.set()

    async def run(self) -> None:
        """Lead whenever elected, for ever."""
        while True:
            await self._election.elected()
            self._wake.clear()
            try:
                await self.round()
            except (Fenced, Unavailable) as error:
                logger.warning("this round of the leader ended early: %s", error)
            except SeaweedqError:
                logger.exception("a round of the leader failed")
            with suppress(TimeoutError):  # wait_for of Python 3.11 may swallow the cancellation that ends this loop
                async with asyncio.timeout(ROUND_S):
                    await self._wake.wait()

    async def round(self) -> None:
        """One look at everything, and the next step of each."""
        await self._recover()
        await self._give_homeless()
        await self._end_deletions()
        now_s = self._clock.monotonic_s()
        if now_s - self._evened_s > EVEN_S:
            self._evened_s = now_s
            await self._even()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            await self._admin.sweep()

    async def _recover(self) -> None:
        """Begin the recovery of each journal whose broker is gone."""
        for broker, (record, revision) in list(self._roster.journals.items()):
            early = self._clock.monotonic_s() < self._not_before_s.get(broker, 0)
            if self._roster.alive(broker) or broker in self._recovering or early or not await self._roster.gone(broker):
                continue
            self._election.leader_compare()
            reach("leader.recover")
            task = asyncio.create_task(self._takeover.recover(broker, record, revision), name=f"recovery of {broker}")
            self._recovering[broker] = task
            task.add_done_callback(partial(self._recovered, broker))

    def _recovered(self, broker: str, task: asyncio.Task[bool]) -> None:
        del self._recovering[broker]
        self._not_before_s[broker] = self._clock.monotonic_s() + AGAIN_S
        if not task.cancelled() and (error := task.exception()):
            logger.error("the journal of %s is not recovered yet: %s", broker, error)
        self._wake.set()

    async def _give_homeless(self) -> None:
        by_owner: dict[str | None, list[_Homeless]] = {}
        for one in self._all():
            if not self._roster.alive(one.record.owner):
                by_owner.setdefault(one.record.owner, []).append(one)
        for owner, segments in by_owner.items():
            released = await self._released(owner)
            if released is not None:
                await self._give(segments, released)

    async def _released(self, owner: str | None) -> list[Compare] | None:
        """What must hold for a dead owner's segments to be given away; None: not yet."""
        if owner is None:
            return []
        broker, journal = keys.BROKERS.key(owner), keys.JOURNALS.key(owner)
        there = await self._coordination.get(journal)
        if await self._coordination.get(broker) or (there and not keys.JOURNALS.decode(there.value).recovered):
            return None
        return [Compare(broker, 0)]  # the journal's key can only go from here, with its content

    async def _give(self, homeless: Sequence[_Homeless], released: list[Compare]) -> None:
        owned = {one.segment: one.record.owner or "" for one in self._all() if self._roster.alive(one.record.owner)}
        targets = assign([one.segment for one in homeless], owned, self._loads, self._hosts())
        given = [one for one in homeless if one.segment in targets]
        for start in range(0, len(given), PAGE):
            page = given[start : start + PAGE]
            writes = [_owned_by(one, targets[one.segment]) for one in page]
            compares = [
                self._election.leader_compare(),
                *released,
                *(self._roster.compare(broker) for broker in {targets[one.segment] for one in page}),
                *(Compare(put.key, one.revision) for put, one in zip(writes, page, strict=True)),
            ]
            reach("leader.give")
            revision = await self._coordination.commit(compares, writes)
            if revision is None:
                logger.warning("segments or brokers have changed meanwhile, looking again")
                await asyncio.gather(self._catalog.load(), self._roster.load())
                return
            self._catalog.apply([Change(put.key, put.value, revision) for put in writes])

    async def _end_deletions(self) -> None:
        """Go on with deletions that whoever began them seems to have left."""
        now_s = self._clock.monotonic_s()
        topics = filter(None, map(self._catalog.find, self._catalog.names()))
        doomed = [topic for topic in topics if topic.record.state == "deleting"]
        self._deleting_s = {topic: self._deleting_s.get(topic, now_s) for topic in doomed}
        for topic, since_s in self._deleting_s.items():
            if now_s - since_s > DELETION_S:
                await self._delete(topic)

    async def _even(self) -> None:
        hosts = self._hosts()
        if len(hosts) < 2:
            return
        self._loads = await self._ask_loads()
        owned = {one.segment: one.record.owner for one in self._all() if one.record.owner}
        planned = moves(owned, self._loads, hosts, MOVES, TOLERANCE)
        now_s = self._clock.monotonic_s()
        self._moved_s = {segment: at for segment, at in self._moved_s.items() if now_s - at < SETTLED_S}
        places = asyncio.Semaphore(GIVERS)
        settled = {host.broker for host in hosts if not host.draining}
        await asyncio.gather(
            *(self._move(m, places) for m in planned if m.segment not in self._moved_s or m.source not in settled)
        )

    async def _move(self, move: Move, places: asyncio.Semaphore) -> None:
        url = self._roster.url(move.source)
        async with places:
            if url is None:
                return
            topic, incarnation, segment = move.segment
            try:
                await self._peers.call(url, "give", GiveRequest(topic, incarnation, segment, move.target), bool, CALL_S)
                self._moved_s[move.segment] = self._clock.monotonic_s()
            except SeaweedqError as error:
                logger.info("segment %d of %s stays with %s: %s", segment, topic, move.source, error)

    async def _ask_loads(self) -> dict[SegmentId, float]:
        urls = [record.url for record, _ in self._roster.brokers.values()]
        reports = await asyncio.gather(
            *(self._peers.call(url, "load", None, list[tuple[SegmentId, float]], CALL_S) for url in urls),
            return_exceptions=True,
        )
        return {segment: load for report in reports if isinstance(report, list) for segment, load in report}

    def _hosts(self) -> list[Host]:
        found = self._roster.brokers.items()
        return [Host(broker, record.zone, record.draining) for broker, (record, _) in sorted(found)]

    def _all(self) -> Iterator[_Homeless]:
        for topic in filter(None, map(self._catalog.find, self._catalog.names())):
            for number, (record, revision) in self._catalog.records(topic).items():
                yield _Homeless((topic.name, topic.record.incarnation, number), record, revision)


def _owned_by(one: _Homeless, owner: str) -> Put:
    record = msgspec.structs.replace(one.record, owner=owner)
    return Put(keys.SEGMENTS.key(*one.segment), keys.SEGMENTS.encode(record))
