"""The key space's history (balancer/history): the leader records it from the loads that owners report, and every broker
asks the leader for it.

Every RECORD_S the messages and bytes since the last time become a column. A segment's offsets say how many messages
came, also over a move, and of a segment that was sealed meanwhile up to its end; so nothing is counted twice, and
nothing of a segment is left out that was known before. Bytes that no owner reported are estimated by those before.
Nothing is stored: a broker that begins to lead begins anew, and so does one whose wall clock went back.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from seaweedq.balancer.history import Cell, History, SegmentTraffic, cells
from seaweedq.balancer.placement import SegmentId
from seaweedq.balancer.scaling import HotKey
from seaweedq.broker.context import ClusterView, Context
from seaweedq.broker.load import Loads, OwnerCounts, Reports
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import HistoryCall
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.election import Election
from seaweedq.coordination.records import SegmentRecord
from seaweedq.errors import PeerTooOld, Unavailable
from seaweedq.segments.keyrange import KeyRange

RECORD_S = 10.0
MS_US = 1_000
BREATH = 1_000  # segments between two turns of other tasks
FindHotKeys = Callable[[], Mapping[SegmentId, HotKey]]
FIND_S, CALL_S, PAUSE_S = 5.0, 5.0, 0.2


@dataclass(frozen=True, slots=True)
class _Known:
    """The knowledge of the segments when the last column ended: the counts of those that had any, the brokers that had
    answered, and the term of this leader."""

    term: int
    at_us: int
    counts: Mapping[SegmentId, OwnerCounts]
    answered: frozenset[str]


class HistoryRecorder:
    """The history that this broker records while it leads. `hot` are the segments not split because of one key."""

    def __init__(self, catalog: Catalog, reports: Reports, election: Election, hot: FindHotKeys, clock: Clock) -> None:
        self.history: History | None = None
        self._catalog = catalog
        self._reports = reports
        self._election = election
        self._hot = hot
        self._clock = clock
        self._known = _Known(0, 0, {}, frozenset())
        self._due_s = float("-inf")

    async def record(self) -> None:
        """Adds the last reports to the history, if that is due and this broker leads."""
        if not self._election.is_leader:
            return
        term, now_s = self._election.leader_compare().revision, self._clock.monotonic_s()
        now_us = self._clock.now_us() // MS_US * MS_US  # as cells tell it, so that their times can be asked for
        known, history = self._known, self.history
        if history is None or term != known.term or now_us < known.at_us:
            self.history, known, self._due_s = History(now_us), _Known(term, now_us, {}, frozenset()), now_s
            self._known = replace(known, counts=(await self._collect(known, now_us))[1], answered=self._answered())
        elif now_s >= self._due_s and now_us > known.at_us:
            taken, counts = await self._collect(known, now_us)
            self._known = _Known(term, now_us, counts, self._answered())
            await asyncio.to_thread(history.add, now_us, taken)
        else:
            return
        self._due_s = max(self._due_s, now_s - RECORD_S) + RECORD_S  # on average that long, whatever rounds take

    def _answered(self) -> frozenset[str]:
        return frozenset(self._reports.answered)

    async def _collect(self, known: _Known, now_us: int) -> tuple[list[SegmentTraffic], dict[SegmentId, OwnerCounts]]:
        """Returns what all segments took since then, and the counts of those that were still open when they were looked
        at, each of them once."""
        hot, counts = self._hot(), self._reports.counts
        taken: list[SegmentTraffic] = []
        there: dict[SegmentId, OwnerCounts] = {}
        for at, key in enumerate({**known.counts, **counts}):
            if at % BREATH == 0:
                await asyncio.sleep(0)
            record = self._record(key)
            if record is None:
                continue
            if record.state == "sealed":
                if before := known.counts.get(key):
                    taken += self._rest(known, key, record, before.end, before.mean_bytes, now_us)
                continue
            there[key] = counts.get(key) or known.counts[key]
            messages, size_bytes = _since(known, key, there[key], record)
            if messages > 0:
                taken.append(_traffic(key, record, now_us, messages, size_bytes, hot.get(key)))
        return taken, there

    def _record(self, key: SegmentId) -> SegmentRecord | None:
        topic = self._catalog.find(key[0])
        if topic is None or topic.record.incarnation != key[1]:
            return None
        found = self._catalog.records(topic).get(key[2])
        return found.record if found else None

    def _rest(
        self, known: _Known, key: SegmentId, record: SegmentRecord, end: int, mean_bytes: float, now_us: int
    ) -> Iterator[SegmentTraffic]:
        """Yields what a sealed segment took behind the end that was known of it, and so all of those that came after it
        and are sealed by now, too."""
        rest = (record.end_offset or 0) - end
        if rest > 0:
            yield _traffic(key, record, now_us, rest, round(rest * mean_bytes), None)
        for number in record.successors:
            successor = (*key[:2], number)
            after = self._record(successor)
            came_and_went = after and after.state == "sealed" and after.created_us >= known.at_us
            if after and came_and_went and after.predecessors[0] == key[2]:
                yield from self._rest(known, successor, after, 0, mean_bytes, now_us)


def _since(known: _Known, key: SegmentId, counts: OwnerCounts, record: SegmentRecord) -> tuple[int, int]:
    """Returns the messages and bytes since the last column. Of a segment that was not known then they are what its
    owner has counted, if that owner was known to have counted nothing; else none, since it may be of long ago."""
    before = known.counts.get(key)
    if before is None:
        if record.created_us >= known.at_us:
            return counts.end, counts.size_bytes
        return (counts.messages, counts.size_bytes) if counts.owner in known.answered else (0, 0)
    goes_on = before.owner == counts.owner and counts.size_bytes >= before.size_bytes
    return counts.end - before.end, counts.size_bytes - (before.size_bytes if goes_on else 0)


def _traffic(
    key: SegmentId, record: SegmentRecord, now_us: int, messages: int, size_bytes: int, hot: HotKey | None
) -> SegmentTraffic:
    return SegmentTraffic(
        key,
        KeyRange(record.low, record.high),
        record.created_us,
        now_us if record.sealed_us is None else record.sealed_us,
        messages,
        size_bytes,
        (hot.hash, hot.share) if hot else None,
    )


class FoundHistory(msgspec.Struct, array_like=True, frozen=True):
    """The cells that the `leader` knows, from `begin_us` to `end_us`: it has recorded all that time."""

    leader: str
    begin_us: int
    end_us: int
    cells: list[Cell]


class Histories:
    """Finds histories at the leader, and answers from the `recorder` while this broker leads."""

    def __init__(self, view: ClusterView, election: Election, recorder: HistoryRecorder, peers: Peers) -> None:
        self.recorder = recorder
        self._view = view
        self._election = election
        self._peers = peers

    async def find(self, call: HistoryCall) -> FoundHistory:
        """Returns the history that a call names. Raises Unavailable if no leader answers in time."""
        deadline = Deadline(self._view.clock, FIND_S)
        failure: Unavailable | None = None
        async for _ in deadline.attempts(pause_s=PAUSE_S):
            try:
                return await self._ask(call)
            except PeerTooOld:
                raise
            except Unavailable as error:
                failure = error
        raise failure or Unavailable("no broker leads, so nobody knows the history; try again")

    async def here(self, call: HistoryCall) -> FoundHistory:
        """Returns the history that this broker has recorded. Raises Unavailable unless it leads and has begun to."""
        history = self.recorder.history
        if not self._election.is_leader or history is None:
            raise Unavailable("the leader has just changed, so the history begins anew; try again")
        return await asyncio.to_thread(_found, self._view.membership.broker, history, call)

    async def _ask(self, call: HistoryCall) -> FoundHistory:
        leader = await self._election.leader()
        if leader == self._view.membership.broker:
            return await self.here(call)
        url = self._view.roster.url(leader)
        if url is None:
            raise Unavailable("no broker leads, so nobody knows the history; try again")
        return await self._peers.call(url, "history", call, FoundHistory, CALL_S)


def _found(leader: str, history: History, call: HistoryCall) -> FoundHistory:
    begin_us, end_us = history.begin_us, history.end_us
    columns = history.columns_of((call.topic, call.incarnation), call.since_us, call.until_us)
    return FoundHistory(leader, begin_us, end_us, cells(columns, call.cells))


class Load(Service):
    """The meters of this broker (`loads`), the `reports` of all of them, and the histories. `hot` returns the keys that
    the autoscaler found hot."""

    def __init__(self, context: Context, hot: FindHotKeys) -> None:
        self.loads = Loads(context.catalog, context.broker, context.clock)
        self.reports = Reports(context.catalog, context.roster, context.peers, context.broker, self.loads)
        self.recorder = HistoryRecorder(context.catalog, self.reports, context.election, hot, context.clock)
        self.histories = Histories(context.view, context.election, self.recorder, context.peers)

    async def run(self) -> Tasks:
        """Reads the meters."""
        return {"loads": self.loads.run()}
