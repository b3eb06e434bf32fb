"""Retention at the leader: raises start offsets over files that are due, and deletes files once the grace is over.

Order of writes: 1. a round begins (broker/retention/rounds); 2. a segment's start is raised in coordination, in a
transaction that compares the leader's key, the topic's record with its policy, the start, and, if the policy goes by
acks, the key that changes with each creation and each seek of a subscription, since those take acks back; from here on
the rows below are for nobody; 3. the grace passes, in which brokers hear of it, and readers of files end; 4. in a later
round the files before the start are deleted, the oldest first; 5. the start's record forgets that raise. A crash behind
2 or in 4 leaves files below a start, which the next round deletes. A file that is put late under such a name is deleted
with the next ones of its segment. A start never falls, so a leader that has lost the lead, and goes on with 4, deletes
what every leader would. Payloads that only deleted rows have named go later (broker/retention/payloads), and the rest
of a sealed segment behind them (broker/retention/segment_removal).

A scan of a topic's files costs a request a segment, so nothing is listed before something can be due, and not again
before something has changed. By age: a segment's first file is not older than the segment; once the files were listed,
their times are known, and each is scanned once when it becomes due, a segment's newest one also when the segment is
idle. By size: owners report how many bytes their segments have. By acks: cursors are in coordination. If nothing of a
topic has moved since the last scan (the ends of its files, the acks, the policy), and no further file has become due,
nothing is listed again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

import msgspec

from seaweedq.broker.context import ClusterView, Context
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.retention.due import IDLE_US, SLACK_US, File, SegmentFiles, due
from seaweedq.broker.retention.files import EmptyEntries, TopicFiles
from seaweedq.broker.retention.payloads import RetainedPayloads
from seaweedq.broker.retention.rounds import MAX_SKEW_US, Rounds
from seaweedq.broker.retention.segment_removal import SegmentRemoval
from seaweedq.broker.retention.subscription_expiry import SubscriptionExpiry
from seaweedq.broker.service import Service
from seaweedq.broker.subscriptions.subscribing import Subscribing
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import RetentionPolicy, StartRecord
from seaweedq.errors import Fenced, NotOwner, SeaweedqError
from seaweedq.segments.entry import EntryName

RAISES = 32  # that a start's record remembers; more count as the newest one, whose grace ends last
NAMED = 20  # topics in a log line
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """All that a scan's result depends on: while it is that of the last scan, no new scan is needed."""

    policy: RetentionPolicy
    aged: bool
    is_over: bool
    flushed: Mapping[int, int]
    acked: Mapping[int, int] | None


@dataclass(slots=True)
class _Seen:
    """The last scan of a topic: its inputs, when the next file may be due by its age (microseconds since 1970), and
    whether a change may make one due before: some are old enough, but are a segment's newest or have unread rows, or
    there was none at all."""

    inputs: ScanInputs
    next_us: float
    recheck_on_change: bool


class Scans:
    """Decides of which topics to scan the files. Its memory of earlier scans costs only listings when it is lost."""

    def __init__(self, catalog: Catalog, files: TopicFiles, positions: TopicPositions) -> None:
        self._catalog = catalog
        self._files = files
        self._positions = positions
        self._seen: dict[Topic, _Seen] = {}
        self._unfinished: set[Topic] = set()

    async def inputs(self, topic: Topic, now_us: int) -> ScanInputs | None:
        """Returns the inputs of a scan that may find something due; None if none can. Raises Unavailable."""
        policy = topic.record.config.retention
        if not policy.takes:
            self._seen.pop(topic, None)
            return None
        seen = self._seen.get(topic)
        has_come = now_us >= self._aged_at_us(topic, policy, seen)  # the time of a file that no scan has seen due
        has_come = has_come or topic in self._unfinished
        aged = has_come or (seen is not None and seen.recheck_on_change and seen.inputs.policy == policy)
        if not aged and policy.max_bytes is None and not policy.delete_read:
            return None
        positions = await self._positions.positions(topic, sizes=policy.max_bytes is not None)
        over = policy.max_bytes is not None and sum(p.size_bytes for p in positions.values()) > policy.max_bytes
        acked = await self._files.acked(topic) if policy.keep_unread or policy.delete_read else None
        if not (aged or over or (policy.delete_read and acked and any(acked.values()))):
            return None
        inputs = ScanInputs(policy, aged, over, {number: one.flushed for number, one in positions.items()}, acked)
        return None if seen and seen.inputs == inputs and not has_come else inputs

    def record_scan(self, topic: Topic, inputs: ScanInputs, left: Mapping[int, SegmentFiles], now_us: int) -> None:
        """Records a scan at a time of the store, and the files that it has `left`."""
        max_age_s = inputs.policy.max_age_s
        age_us = inf if max_age_s is None else max_age_s * 1e6 + SLACK_US
        dated = [_that_go(one, inputs.flushed.get(number, 0)) for number, one in left.items()]
        due_us = [file.modified_us + age_us for files in dated for file in files]
        by_idleness = age_us < IDLE_US or inputs.is_over or inputs.policy.delete_read  # else age comes later, or never
        idle_us = [files[-1].modified_us + IDLE_US for files in dated if files] if by_idleness else []
        next_us = min((each for each in [*due_us, *idle_us] if each > now_us), default=inf) + MAX_SKEW_US
        recheck_on_change = max_age_s is not None and (not due_us or min(due_us) <= now_us)
        self._seen[topic] = _Seen(inputs, next_us, recheck_on_change)
        self._unfinished.discard(topic)

    def recheck(self, topic: Topic) -> None:
        """Has the next round scan a topic, whatever has changed: some owners did not put their empty entries."""
        self._unfinished.add(topic)

    def forget_except(self, topics: set[Topic]) -> None:
        """Forgets topics that are gone."""
        self._seen = {topic: seen for topic, seen in self._seen.items() if topic in topics}
        self._unfinished &= topics

    def _aged_at_us(self, topic: Topic, policy: RetentionPolicy, seen: _Seen | None) -> float:
        if seen and seen.inputs.policy == policy:
            return seen.next_us
        if policy.max_age_s is None:
            return inf
        created_us = min((known.record.created_us for known in self._catalog.records(topic).values()), default=0)
        return created_us + policy.max_age_s * 1e6 + SLACK_US + MAX_SKEW_US


def _that_go(segment: SegmentFiles, end: int) -> Sequence[File]:
    """Leaves out an open segment's newest file without rows, which stays."""
    files = segment.files
    stays = not segment.sealed and files and files[-1].name.first_offset >= end
    return files[:-1] if stays else files


class Retention:
    """The retention of all topics. `files` were deleted by this broker."""

    def __init__(
        self,
        view: ClusterView,
        rounds: Rounds,
        scans: Scans,
        files: TopicFiles,
        payloads: RetainedPayloads,
        removal: SegmentRemoval,
        grace_s: float,
    ) -> None:
        self.files = 0
        self.rounds = rounds
        self.payloads = payloads
        self.removal = removal
        self._catalog = view.catalog
        self._clock = view.clock
        self._scans = scans
        self._files = files
        self._grace_s = grace_s

    async def round(self) -> None:
        """Does all work that is due. Raises Unavailable, Fenced; an error of one topic keeps no other from its turn."""
        found = filter(None, map(self._catalog.get, self._catalog.names()))
        topics = [topic for topic in found if topic.record.state == "active"]
        self._scans.forget_except(set(topics))
        self.payloads.forget_except(set(topics))
        now_us = self._clock.now_us()
        doomed = [  # the segments of which files are below a start that was raised the grace ago
            (topic, number)
            for topic in topics
            for number, held in self._catalog.starts.known(topic.name, topic.record.incarnation).items()
            if self._below(topic, held.record, now_us - MAX_SKEW_US)
        ]
        scans: list[tuple[Topic, ScanInputs]] = []
        for topic in topics:
            with _one_of_many(topic):
                if inputs := await self._scans.inputs(topic, now_us):
                    scans.append((topic, inputs))
        unnamed = [topic for topic in topics if self.payloads.is_due(topic, now_us - MAX_SKEW_US)]
        emptied = [topic for topic in topics if self.removal.due(topic)]
        if not (doomed or scans or unnamed or emptied):
            return
        began_us = await self.rounds.begin()
        if began_us is None:
            return
        for topic, inputs in scans:
            with _one_of_many(topic):
                await self._raise_starts(topic, inputs, began_us)
        for topic, number in doomed:
            with _one_of_many(topic):
                await self._delete(topic, number, began_us)
        for topic in unnamed:
            with _one_of_many(topic):
                await self.payloads.delete_unreferenced(topic, began_us)
        for topic in emptied:
            with _one_of_many(topic):
                await self.removal.remove(topic, began_us)

    def _below(self, topic: Topic, start: StartRecord, now_us: int) -> int:
        """Returns the sequence below which files may be deleted."""
        grace_s = topic.record.config.retention.grace_s
        grace_us = int((self._grace_s if grace_s is None else grace_s) * 1e6)
        return max((sequence for sequence, raised_us in start.raised if raised_us + grace_us <= now_us), default=0)

    async def _raise_starts(self, topic: Topic, inputs: ScanInputs, now_us: int) -> None:
        """Raises the starts over files that are due."""
        revision, policy = topic.revision, topic.record.config.retention
        unchanged = [Compare(keys.TOPICS.key(topic.name), revision), *await self._files.unchanged(topic, policy)]
        segments, is_complete = await self._files.read_after_empty_entries(topic, policy, inputs.flushed, now_us)
        counts = due(policy, segments, now_us)
        for number, count in counts.items():
            await self._raise_start(topic, unchanged, number, segments[number].files, count, now_us)
        left = {n: replace(one, files=one.files[counts.get(n, 0) :]) for n, one in segments.items()}
        self._scans.record_scan(topic, inputs, left, now_us)
        if not is_complete:
            self._scans.recheck(topic)

    async def _raise_start(
        self, topic: Topic, unchanged: Sequence[Compare], number: int, files: Sequence[File], count: int, now_us: int
    ) -> None:
        """Raises a start over the first `count` files of a segment; over all of them, of a sealed one."""
        emptied = count == len(files)
        last = files[count - 1]
        first = EntryName(last.name.sequence + 1, last.end)
        place = (topic.name, topic.record.incarnation, number)
        held = self._catalog.starts.held(*place)
        raised = (*held.record.raised, (first.sequence, now_us))
        if len(raised) > RAISES:
            raised = (*raised[: RAISES - 1], raised[-1])
        record = msgspec.structs.replace(
            held.record, sequence=first.sequence, offset=first.first_offset, raised=raised, emptied=emptied
        )
        key = keys.STARTS.key(*place)
        compares = [self.rounds.leader_compare(), *unchanged, Compare(key, held.revision)]
        reach("retention.raise")
        if not await self._catalog.commit(compares, [Put(key, keys.STARTS.encode(held.with_record(record)))]):
            raise NotOwner(
                f"topic {topic.name!r}, one of its subscriptions, or the leader changed while retention was running"
            )
        reach("retention.raised")
        logger.info(
            "retention is deleting the messages of segment %d of topic %s below offset %d",
            number,
            topic.name,
            first.first_offset,
        )

    async def _delete(self, topic: Topic, number: int, now_us: int) -> None:
        """Deletes the files before the start whose grace is over."""
        place = (topic.name, topic.record.incarnation, number)
        held = self._catalog.starts.held(*place)
        below = self._below(topic, held.record, now_us)
        if not below:
            return
        self.files += await self._files.delete_before(topic, number, below, self.rounds.leader_compare)
        reach("retention.deleted")
        deleted = below if await self.payloads.any(topic) else held.record.deleted
        record = held.replace(raised=tuple(one for one in held.record.raised if one[0] > below), deleted=deleted)
        key = keys.STARTS.key(*place)
        put = Put(key, keys.STARTS.encode(record))
        await self._catalog.commit([self.rounds.leader_compare(), Compare(key, held.revision)], [put])


@contextmanager
def _one_of_many(topic: Topic) -> Iterator[None]:
    try:
        yield
    except Fenced:
        raise
    except SeaweedqError as error:
        logger.warning("retention of topic %s failed, and will be retried: %s", topic.name, error)
    except Exception:  # a defect must not keep the files of all other topics
        logger.exception("retention of topic %s failed, and will be retried", topic.name)


class Retaining(Service):
    """The `retention` of topics and the `expiry` of subscriptions, which the leader has done now and then (no task here
    does it); the `empty_entries` that it asks owners for."""

    def __init__(
        self, context: Context, log: Log, publishing: Publishing, reading: Reading, subscribing: Subscribing
    ) -> None:
        view, store, coordination, settings = context.view, context.store, context.coordination, context.settings
        catalog, clock, ownership = context.catalog, context.clock, publishing.ownership
        self.empty_entries = EmptyEntries(
            view, ownership, log.commit, log.flusher, context.peers, settings.publish_timeout_s
        )
        self.files = TopicFiles(catalog, coordination, store, self.empty_entries)
        rounds = Rounds(coordination, store, context.election, clock, context.generations.check)
        payloads = RetainedPayloads(
            catalog, coordination, store.payloads, rounds, reading.positions, settings.upload_grace_s
        )
        removal = SegmentRemoval(catalog, coordination, rounds, self.files, clock)
        scans = Scans(catalog, self.files, reading.positions)
        self.retention = Retention(view, rounds, scans, self.files, payloads, removal, settings.retention_grace_s)
        self.expiry = SubscriptionExpiry(catalog, coordination, subscribing.admin, rounds, clock, settings.checkpoint_s)
