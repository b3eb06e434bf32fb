"""Load: rates of this broker's segments and the keys they come from; all brokers' reports, as the leader has them; and
the key space's history, which the leader records from the reports, and for which every broker asks the leader.

Rows are counted when they become durable, and metered once a second. Hashes are taken of a few rows that are still in
the tail then, so their cost does not grow with the traffic. Time that was not observed counts as unknown, and not as
idle: else a broker that got a segment a moment ago would look as if it had room for more. Observers get the rates that
the owner itself has measured: of a segment that was moved, the rows since then.

Every RECORD_S the messages and bytes since the last time become a column of the history (balancer/history). A segment's
offsets say how many messages came, also over a move, and of a segment that was sealed meanwhile up to its end; so
nothing is counted twice, and nothing of a segment is left out that was known before. Bytes that no owner reported are
estimated by those before. Nothing is stored: a broker that begins to lead begins anew, and so does one whose wall clock
went back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seaweedq.balancer.broker_count import Utilization
from seaweedq.balancer.history import Cell, History, SegmentTraffic, cells
from seaweedq.balancer.load import IDLE, WINDOWS_S, Averages, LoadMeter, Rate, SegmentLoad, corrected, costs
from seaweedq.balancer.placement import Host, SegmentId
from seaweedq.balancer.policy import ScalingPolicy, scaling_policy
from seaweedq.balancer.scaling import HotKey, NearestSplit, Segment, hot_keys, nearest_split
from seaweedq.broker.context import ClusterView, Context
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import BufferedRows, OpenSegment
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import Count, HistoryCall
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.segment_index import Records
from seaweedq.clock import Clock, CpuTimes
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.election import Election
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.roster import Roster
from seaweedq.errors import InvalidRequest, PeerTooOld, Unavailable
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.row_hashes import hash_keys
from seaweedq.settings import Settings

TICK_S = 1.0
DRAWS, ROWS = 8, 32  # samples of a segment, each second
WARM = 0.1  # share of the target: above it, the report has the distribution over the range
_STEP = 0.6180339887498949
_PLACES = np.arange(ROWS) * _STEP % 1  # evenly spread, and in step with no pattern of keys
logger = logging.getLogger(__name__)
CALL_S = 5.0
RECORD_S = 10.0
MS_US = 1_000
BREATH = 1_000  # segments between two turns of other tasks
FindHotKeys = Callable[[], Mapping[SegmentId, HotKey]]
FIND_S, PAUSE_S = 5.0, 0.2


class LoadReport(msgspec.Struct, array_like=True):
    """A broker's report to the leader: the loads of its segments, the seconds for which the others have had none, and
    the utilization of its resources. With each load come the end of the segment, and the messages and bytes that this
    broker has taken since it opened the segment."""

    loads: list[tuple[SegmentId, SegmentLoad, tuple[Count, Count, Count]]]
    idle: list[tuple[SegmentId, float]]
    utilization: Utilization = Utilization()

    def all(self) -> dict[SegmentId, SegmentLoad]:
        """Returns the load of each segment."""
        idle = {segment: SegmentLoad(observed_s=observed_s) for segment, observed_s in self.idle}
        return {segment: load for segment, load, _ in self.loads} | idle


@dataclass(slots=True)
class _SegmentMeter:
    """A segment at its last reading; one that nobody has needed yet is not open, and has no load."""

    segment: OpenSegment | None
    meter: LoadMeter
    messages: int = 0
    size_bytes: int = 0
    end: int = 0

    def begin(self, segment: OpenSegment) -> None:
        """Begins to count now."""
        self.segment, self.end = segment, segment.end
        self.messages, self.size_bytes = segment.taken_messages, segment.taken_bytes


class Loads:
    """The meters of the open segments that `broker` owns, and of the CPU. `cpu_s` returns the CPU seconds used, each
    against a capacity of one second per second (clock.CpuClock)."""

    def __init__(
        self, catalog: Catalog, broker: str, clock: Clock, budget: Budget, settings: Settings, cpu_s: CpuTimes
    ) -> None:
        self._catalog = catalog
        self._broker = broker
        self._clock = clock
        self._budget = budget
        self._settings = settings
        self._cpu_s = cpu_s
        self._used_s = cpu_s()
        self._cpu = Rate()
        self._began_s = clock.monotonic_s()
        self._ticked_s = clock.monotonic_s()
        self._metered: dict[SegmentId, _SegmentMeter] = {}

    async def run(self) -> None:
        """Reads the meters, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:
                logger.exception("the load of segments could not be measured; continuing")

    def tick(self) -> None:
        """Reads the meters once."""
        now_s = self._clock.monotonic_s()
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        used_s, before_s = self._cpu_s(), self._used_s
        self._used_s = used_s
        self._cpu.add(max(now - before for now, before in zip(used_s, before_s, strict=True)), passed_s, 1.0)
        seen: dict[SegmentId, _SegmentMeter] = {}
        cool_downs: dict[Topic, float] = {}
        for key in self._catalog.owned_by(self._broker):
            topic = self._catalog.get(key[0])
            if topic is None or topic.record.incarnation != key[1]:
                continue
            if topic not in cool_downs:
                cool_downs[topic] = policy_of(topic).cool_down_s
            known = self._metered.get(key)
            if known is None:
                record = self._catalog.segment(topic, key[2]).record
                seen[key] = _SegmentMeter(None, LoadMeter(KeyRange(record.low, record.high)))
                if segment := topic.opened.get(key[2]):
                    seen[key].begin(segment)
            else:
                seen[key] = known
                _update(known, topic.opened.get(key[2]), passed_s, cool_downs[topic])
        self._metered = seen

    def by_segment(self, topic: Topic) -> dict[int, SegmentLoad]:
        """Returns the loads of a topic's open segments that this broker owns, by number."""
        name, policy = (topic.name, topic.record.incarnation), policy_of(topic)
        known = ((number, self._metered.get((*name, number))) for number in self._catalog.records(topic))
        return {number: _reported(one.meter, policy) for number, one in known if one}

    def report(self) -> LoadReport:
        """Returns all loads, for the leader."""
        found = LoadReport([], [], self.utilization())
        policies: dict[tuple[str, int], ScalingPolicy] = {}
        for key, one in self._metered.items():
            if key[:2] not in policies:
                topic = self._catalog.get(key[0])
                policies[key[:2]] = policy_of(topic) if topic else ScalingPolicy()
            load = _reported(one.meter, policies[key[:2]])
            if one.messages or any(load.messages_peaks):
                found.loads.append((key, load, (one.end, one.messages, one.size_bytes)))
            else:
                found.idle.append((key, load.observed_s))
        return found

    def utilization(self) -> Utilization:
        """Returns the utilization of this broker's resources."""
        cpu = corrected(self._cpu.per_s, self._ticked_s - self._began_s)[0]
        messages, size = self.totals()
        capacity = self._settings
        parts = (
            (messages[0], capacity.capacity_messages_per_s),
            (size[0], capacity.capacity_bytes_per_s),
            (len(self._metered), capacity.capacity_segments),
        )
        memory = self._budget.held / self._budget.limit_bytes
        return Utilization(cpu, memory, *(used / stated if stated else 0.0 for used, stated in parts))

    def totals(self) -> tuple[Averages, Averages]:
        """Returns messages and bytes a second of all segments together, corrected."""
        loads = [one.meter.load(keys=False) for one in self._metered.values()]
        observed_s = np.array([max(load.observed_s, 1e-9) for load in loads]).reshape(-1, 1)
        weights = -np.expm1(-observed_s / np.array(WINDOWS_S))
        per_s = ([load.messages_per_s for load in loads], [load.bytes_per_s for load in loads])
        messages, size = (np.array(each).reshape(weights.shape) / weights for each in per_s)
        return tuple(messages.sum(axis=0).tolist()), tuple(size.sum(axis=0).tolist())

    def costs(self) -> dict[SegmentId, float]:
        """Returns the cost of each segment in placement."""
        return costs(self.report().all())


def _update(known: _SegmentMeter, segment: OpenSegment | None, passed_s: float, cool_down_s: float) -> None:
    if known.segment is not segment and segment:
        known.begin(segment)
        known.messages = known.size_bytes = known.end = 0  # all its rows came since the last reading
    messages = size_bytes = 0
    if segment:
        messages, size_bytes = segment.taken_messages - known.messages, segment.taken_bytes - known.size_bytes
        if messages:
            _sample(known.meter, segment, known.end, messages)
        known.begin(segment)
    known.meter.tick(messages, size_bytes, passed_s, cool_down_s)


def _reported(meter: LoadMeter, policy: ScalingPolicy) -> SegmentLoad:
    """Returns a load as the balancer needs it: of a cool segment it does not need the distribution of keys."""
    load = meter.load(keys=False)
    warm = max(load.messages_per_s) > WARM * policy.target_messages_per_s
    return meter.load() if warm or max(load.bytes_per_s) > WARM * policy.target_bytes_per_s else load


def segment_of(key: SegmentId, record: SegmentRecord, load: SegmentLoad | None, now_us: int) -> Segment:
    """Returns an open segment as the balancer's decisions see it."""
    intent = record.intent
    return Segment(
        key,
        KeyRange(record.low, record.high),
        record.owner or "",
        max(0.0, (now_us - record.created_us) / 1e6),
        load,
        locked=intent is not None,
        becomes=len(intent.successors) / len(intent.segments) if intent else 1.0,
    )


def policy_of(topic: Topic) -> ScalingPolicy:
    """Returns a topic's policy; one of a later version, which this broker cannot read, is not followed."""
    config = topic.record.config
    try:
        return scaling_policy(config.scaling, config.initial_segments)
    except InvalidRequest:
        return ScalingPolicy(enabled=False)


def _sample(meter: LoadMeter, segment: OpenSegment, since: int, messages: int) -> None:
    """Shows the meter some of the rows that came since an offset, and are still in the tail."""
    keyless, keyed = 0, []
    for buffered, times in _drawn(segment.tail.since(since), segment.end):
        rows = buffered.rows
        chosen, counts = _places(rows.num_rows)
        at = rows.schema.get_field_index("_key")
        keys = rows.column(at).take(chosen) if at >= 0 else pa.nulls(len(chosen), pa.string())
        there = keys.is_valid().to_numpy(zero_copy_only=False)
        keyless += times * int(counts[~there].sum())
        if there.any():
            keyed.append(np.repeat(hash_keys(keys.drop_null()), times * counts[there]))
    hashes = np.concatenate(keyed) if keyed else np.empty(0, np.int32)
    sampled = keyless + len(hashes)
    if keyless:
        meter.sample_keyless(messages * keyless / sampled)
    if len(hashes):
        meter.sample(hashes, messages * len(hashes) / sampled)


def _drawn(buffered: Sequence[BufferedRows], end: int) -> list[tuple[BufferedRows, int]]:
    """Draws some commits' rows, the more likely the more they are. Returns each with how often it was drawn."""
    if len(buffered) < 2:
        return [(rows, 1) for rows in buffered]
    ends = np.cumsum([each.rows.num_rows for each in buffered])
    draws = (np.arange(DRAWS) + end * _STEP % 1) / DRAWS * ends[-1]
    drawn, times = np.unique(np.searchsorted(ends, draws, side="right"), return_counts=True)
    return [(buffered[at], count) for at, count in zip(drawn.tolist(), times.tolist(), strict=True)]


@lru_cache(maxsize=1024)  # most commits have few rows, or one of a few sizes
def _places(rows: int) -> tuple[pa.Array, npt.NDArray[np.intp]]:
    """Chooses which of so many rows are looked at. Returns them, and as how many each counts."""
    chosen, counts = np.unique((_PLACES * rows).astype(np.intp), return_counts=True)
    return pa.array(chosen), counts


class SegmentRates(msgspec.Struct, array_like=True, frozen=True):
    """The rates of an open segment a second, by window, corrected. `hot_key` is the hash, with its share (0 to 1), of
    the one key because of which an overloaded segment is not split. `nearest` is None if the topic does not split by
    itself; `is_full` tells that it has as many segments as it may have."""

    messages_per_s: Averages = IDLE
    bytes_per_s: Averages = IDLE
    hot_key: tuple[int, float] | None = None
    nearest: NearestSplit | None = None
    is_full: bool = False


def segment_rates(
    topic: Topic, records: Records, loads: Mapping[int, SegmentLoad], now_us: int
) -> dict[int, SegmentRates]:
    """Returns the rates of the segments of a topic that have these loads, by number."""
    hot, policy = _hot(topic, records, loads, now_us), policy_of(topic)
    is_full = sum(known.record.state == "open" for known in records.values()) >= policy.max_segments
    return {
        number: SegmentRates(
            load.corrected_messages_per_s,
            load.corrected_bytes_per_s,
            hot.get(number),
            nearest_split(load, policy) if policy.enabled else None,
            is_full,
        )
        for number, load in loads.items()
    }


def _hot(topic: Topic, records: Records, loads: Mapping[int, SegmentLoad], now_us: int) -> dict[int, tuple[int, float]]:
    name = (topic.name, topic.record.incarnation)
    busy = {number: load for number, load in loads.items() if any(load.messages_peaks) and number in records}
    segments = [segment_of((*name, number), records[number].record, load, now_us) for number, load in busy.items()]
    hosts = [Host(owner) for owner in dict.fromkeys(segment.owner for segment in segments)]
    found = hot_keys(segments, {name: policy_of(topic)}, hosts)
    return {plan.segment[2]: (plan.hash, plan.share) for plan in found}


@dataclass(frozen=True, slots=True)
class OwnerCounts:
    """The end of a segment, as its owner reported it, and the messages and bytes that this owner has taken since it
    opened the segment."""

    owner: str
    end: int
    messages: int
    size_bytes: int

    @property
    def mean_bytes(self) -> float:
        """Returns the bytes of a message."""
        return self.size_bytes / self.messages if self.messages else 0.0


class Reports:
    """The last report of each broker, of which `broker` is this one and `own` its loads. `loads` are those of the
    brokers that answered, whose names are in `answered`; `counts` are those of their segments that have had any
    message, and `utilizations` those of their resources, by broker.

    The observations of a segment's earlier owner still count: neither a move nor a death makes its load unknown. So
    `costs` also has the last known ones of segments that nobody reports now.
    """

    def __init__(self, catalog: Catalog, roster: Roster, peers: Peers, broker: str, own: Loads) -> None:
        self.loads: dict[SegmentId, SegmentLoad] = {}
        self.costs: dict[SegmentId, float] = {}
        self.answered: set[str] = set()
        self.counts: dict[SegmentId, OwnerCounts] = {}
        self.utilizations: dict[str, Utilization] = {}
        self._catalog = catalog
        self._roster = roster
        self._peers = peers
        self._broker = broker
        self._own = own
        self._owners: dict[SegmentId, str] = {}
        self._earlier: dict[SegmentId, SegmentLoad] = {}  # observed by earlier owners
        self._last: dict[SegmentId, SegmentLoad] = {}  # of each segment that is still there

    async def ask(self) -> None:
        """Asks all living brokers."""
        urls = {broker: known.record.url for broker, known in self._roster.brokers.items() if broker != self._broker}
        asked = (self._peers.call(url, "load", None, LoadReport, CALL_S) for url in urls.values())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reports = {broker: a for broker, a in zip(urls, answers, strict=True) if isinstance(a, LoadReport)}
        reports[self._broker] = self._own.report()
        loads: dict[SegmentId, SegmentLoad] = {}
        for broker, report in reports.items():
            for segment, load in report.all().items():
                loads[segment] = self._joined(segment, broker, load)
        self.answered = set(reports)
        self.utilizations = {broker: report.utilization for broker, report in reports.items()}
        self.counts = {
            segment: OwnerCounts(broker, *counts)
            for broker, report in reports.items()
            for segment, _, counts in report.loads
        }
        known = loads.keys() | {one for owner in self._catalog.owners() for one in self._catalog.owned_by(owner)}
        self._last = {segment: load for segment, load in (self._last | loads).items() if segment in known}
        self.loads, self.costs = loads, costs(self._last)
        self._owners = {segment: owner for segment, owner in self._owners.items() if segment in known}
        self._earlier = {segment: load for segment, load in self._earlier.items() if segment in known}

    def _joined(self, segment: SegmentId, owner: str, load: SegmentLoad) -> SegmentLoad:
        before = self._owners.get(segment)
        if before not in (None, owner) and (last := self._last.get(segment)):
            self._earlier[segment] = last
        self._owners[segment] = owner
        earlier = self._earlier.get(segment)
        if earlier is None:
            return load
        topic = self._catalog.get(segment[0])
        return load.following(earlier, policy_of(topic).cool_down_s) if topic else load


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
        topic = self._catalog.get(key[0])
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
        raise failure or Unavailable("no load history is available, because the cluster has no leader; try again")

    async def here(self, call: HistoryCall) -> FoundHistory:
        """Returns the history that this broker has recorded. Raises Unavailable unless it leads and has begun to."""
        history = self.recorder.history
        if not self._election.is_leader or history is None:
            raise Unavailable(
                "no load history is available, because the leader has just changed and its history "
                "starts again; try again"
            )
        return await asyncio.to_thread(_found, self._view.membership.broker, history, call)

    async def _ask(self, call: HistoryCall) -> FoundHistory:
        leader = await self._election.leader()
        if leader == self._view.membership.broker:
            return await self.here(call)
        url = self._view.roster.url(leader)
        if url is None:
            raise Unavailable("no load history is available, because the cluster has no leader; try again")
        return await self._peers.call(url, "history", call, FoundHistory, CALL_S)


def _found(leader: str, history: History, call: HistoryCall) -> FoundHistory:
    begin_us, end_us = history.begin_us, history.end_us
    columns = history.columns_of((call.topic, call.incarnation), call.since_us, call.until_us)
    return FoundHistory(leader, begin_us, end_us, cells(columns, call.cells))


class Load(Service):
    """The meters of this broker (`loads`), the `reports` of all of them, and the histories. `hot` returns the keys that
    the autoscaler found hot."""

    def __init__(self, context: Context, hot: FindHotKeys, cpu_s: CpuTimes) -> None:
        self.loads = Loads(context.catalog, context.broker, context.clock, context.budget, context.settings, cpu_s)
        self.reports = Reports(context.catalog, context.roster, context.peers, context.broker, self.loads)
        self.recorder = HistoryRecorder(context.catalog, self.reports, context.election, hot, context.clock)
        self.histories = Histories(context.view, context.election, self.recorder, context.peers)

    async def run(self) -> Tasks:
        """Reads the meters."""
        return {"loads": self.loads.run()}
