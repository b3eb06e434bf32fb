"""Retention at the leader: raises start offsets over files that are due, and deletes files once the grace is over.

Order of writes: 1. a round begins (broker/retention/rounds); 2. a segment's start is raised in coordination, in a
transaction that compares the leader's key, the topic's record with its policy, the start, and, where the policy goes by
acks, the key that changes with each creation and each seek of a subscription, since those take acks back; from here on
the rows below are for nobody; 3. the grace passes, in which brokers hear of it, and readers of files end; 4. in a later
round the files before the start are deleted, the oldest first; 5. the start's record forgets that raise. A crash behind
2 or in 4 leaves files below a start, which the next round deletes. A file that is put late under such a name is deleted
with the next ones of its segment. A start never falls, so a leader that has lost the lead, and goes on with 4, deletes
what every leader would. Payloads that only deleted rows have named go later (broker/retention/payloads), and what is
left of a sealed segment behind that (broker/retention/burial).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from seaweedq.broker.retention.burial import Burial
from seaweedq.broker.retention.due import File, due
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.looks import Looks, Signs
from seaweedq.broker.retention.payloads import RetainedPayloads
from seaweedq.broker.retention.rounds import MAX_SKEW_US, Rounds
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records.topics import StartRecord
from seaweedq.errors import Fenced, NotOwner, SeaweedqError
from seaweedq.failpoints import reach
from seaweedq.segments.entry import EntryName

RAISES = 32  # that a start's record remembers; more count as the newest one, whose grace ends last
NAMED = 20  # topics in a log line
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The things that retention takes: files, payloads, and segments of which nothing is left."""

    files: TopicFiles
    payloads: RetainedPayloads
    burial: Burial


class Retention:
    """The retention of all topics. `files` were deleted by this broker."""

    def __init__(self, view: ClusterView, rounds: Rounds, looks: Looks, taken: Taken, grace_s: float) -> None:
        self.files = 0
        self.rounds = rounds
        self.payloads = taken.payloads
        self.burial = taken.burial
        self._catalog = view.catalog
        self._clock = view.clock
        self._looks = looks
        self._files = taken.files
        self._grace_s = grace_s

    async def round(self) -> None:
        """Does what is due. Raises Unavailable, Fenced; what fails of one topic keeps no other from its turn."""
        topics = list(self._active())
        self._looks.forget_except(set(topics))
        self.payloads.forget_except(set(topics))
        now_us = self._clock.now_us()
        doomed = [(topic, n) for topic in topics for n in self._deletable(topic, now_us - MAX_SKEW_US)]
        signs = [(topic, found) for topic in topics if (found := await self._signs(topic, now_us))]
        unnamed = [topic for topic in topics if self.payloads.is_due(topic, now_us - MAX_SKEW_US)]
        emptied = [topic for topic in topics if self.burial.due(topic)]
        if not (doomed or signs or unnamed or emptied):
            return
        began_us = await self.rounds.begin()
        if began_us is None:
            return
        for topic, found in signs:
            with _one_of_many(topic):
                await self._take(topic, found, began_us)
        for topic, number in doomed:
            with _one_of_many(topic):
                await self._delete(topic, number, began_us)
        for topic in unnamed:
            with _one_of_many(topic):
                await self.payloads.look(topic, began_us)
        for topic in emptied:
            with _one_of_many(topic):
                await self.burial.bury(topic, began_us)

    async def tell(self) -> None:
        """Logs which policies are not enforced, since they were stored before retention was there."""
        policies = {topic.name: topic.record.config.retention for topic in self._active()}
        names = [name for name, policy in policies.items() if policy.takes and not policy.enforced]
        if names:
            shown = ", ".join(names[:NAMED])
            logger.warning("the retention of %d topics is not enforced until it is set anew: %s", len(names), shown)

    def _active(self) -> Iterator[Topic]:
        for topic in filter(None, map(self._catalog.find, self._catalog.names())):
            if topic.record.state == "active":
                yield topic

    async def _signs(self, topic: Topic, now_us: int) -> Signs | None:
        with _one_of_many(topic):
            return await self._looks.signs(topic, now_us)
        return None

    def _deletable(self, topic: Topic, now_us: int) -> list[int]:
        """Returns the segments of which files are below a start that was raised the grace ago."""
        known = self._catalog.starts.known(topic.name, topic.record.incarnation)
        return [number for number, held in known.items() if self._below(topic, held.record, now_us)]

    def _below(self, topic: Topic, start: StartRecord, now_us: int) -> int:
        """Returns the sequence below which files may be deleted."""
        grace_s = topic.record.config.retention.grace_s
        grace_us = int((self._grace_s if grace_s is None else grace_s) * 1e6)
        return max((sequence for sequence, raised_us in start.raised if raised_us + grace_us <= now_us), default=0)

    async def _take(self, topic: Topic, signs: Signs, now_us: int) -> None:
        """Raises the starts over what is due."""
        revision, policy = topic.revision, topic.record.config.retention
        unchanged = [Compare(keys.TOPICS.key(topic.name), revision), *await self._files.unchanged(topic, policy)]
        segments, is_marked = await self._files.read_marked(topic, policy, signs.flushed, now_us)
        counts = due(policy, segments, now_us)
        for number, count in counts.items():
            await self._raise_start(topic, unchanged, number, segments[number].files, count, now_us)
        left = {n: replace(one, files=one.files[counts.get(n, 0) :]) for n, one in segments.items()}
        self._looks.looked(topic, signs, left, now_us)
        if not is_marked:
            self._looks.look_again(topic)

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
            raise NotOwner(f"topic {topic.name!r}, its subscriptions, or the leader has changed meanwhile")
        reach("retention.raised")
        logger.info("retention takes segment %d of %s below offset %d", number, topic.name, first.first_offset)

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
        logger.warning("retention of topic %s is tried again: %s", topic.name, error)
    except Exception:  # a defect must not keep the files of all other topics
        logger.exception("retention of topic %s is tried again", topic.name)
