"""When retention looks at a topic's files: a listing costs a request a segment, so nothing is listed before something
can be due, and not again before something has changed.

By age: a segment's first file is not older than the segment; once the files were listed, their times are known, and
each is looked at once when it becomes due, a segment's newest one also when the segment is idle. By size: owners report
how many bytes their segments have. By acks: cursors are in coordination. Of a topic in which nothing has moved since
the last look (the ends of its files, what is acked, the policy), and no further file has become due, nothing is listed
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.retention.due import IDLE_US, SLACK_US, File, SegmentFiles
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.rounds import MAX_SKEW_US
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination.records.topics import RetentionPolicy


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs that something may be due: where they are those of the last look, no new look is needed."""

    policy: RetentionPolicy
    aged: bool
    is_over: bool
    flushed: Mapping[int, int]
    acked: Mapping[int, int] | None


@dataclass(slots=True)
class _Seen:
    """The last look at a topic: its signs, when the next file may be due by its age (microseconds since 1970), and
    whether a change may make one due before: some are old enough, but are a segment's newest or have unread rows, or
    there was none at all."""

    signs: Signs
    next_us: float
    heeds_changes: bool


class Looks:
    """Decides which topics to look at. What it knows of earlier looks costs nothing but listings when it is lost."""

    def __init__(self, catalog: Catalog, files: TopicFiles, positions: TopicPositions) -> None:
        self._catalog = catalog
        self._files = files
        self._positions = positions
        self._seen: dict[Topic, _Seen] = {}
        self._unfinished: set[Topic] = set()

    async def signs(self, topic: Topic, now_us: int) -> Signs | None:
        """Returns the signs that something of a topic may be due, None where nothing can be. Raises Unavailable."""
        policy = topic.record.config.retention
        if not policy.enforced or not policy.takes:
            self._seen.pop(topic, None)
            return None
        seen = self._seen.get(topic)
        has_come = now_us >= self._aged_at_us(topic, policy, seen)  # the time of a file that no look has seen due
        has_come = has_come or topic in self._unfinished
        aged = has_come or self._heeds_changes(policy, seen)
        if not aged and policy.max_bytes is None and not policy.delete_read:
            return None
        positions = await self._positions.positions(topic, sizes=policy.max_bytes is not None)
        over = policy.max_bytes is not None and sum(p.size_bytes for p in positions.values()) > policy.max_bytes
        acked = await self._files.acked(topic) if policy.keep_unread or policy.delete_read else None
        if not (aged or over or (policy.delete_read and acked and any(acked.values()))):
            return None
        signs = Signs(policy, aged, over, {number: one.flushed for number, one in positions.items()}, acked)
        return None if seen and seen.signs == signs and not has_come else signs

    def looked(self, topic: Topic, signs: Signs, left: Mapping[int, SegmentFiles], now_us: int) -> None:
        """Notes a look at a time of the store, and the files that it has `left`."""
        max_age_s = signs.policy.max_age_s
        age_us = inf if max_age_s is None else max_age_s * 1e6 + SLACK_US
        dated = [_that_go(one, signs.flushed.get(number, 0)) for number, one in left.items()]
        due_us = [file.modified_us + age_us for files in dated for file in files]
        by_idleness = age_us < IDLE_US or signs.is_over or signs.policy.delete_read  # else age comes later, or never
        idle_us = [files[-1].modified_us + IDLE_US for files in dated if files] if by_idleness else []
        next_us = min((each for each in [*due_us, *idle_us] if each > now_us), default=inf) + MAX_SKEW_US
        heeds_changes = max_age_s is not None and (not due_us or min(due_us) <= now_us)
        self._seen[topic] = _Seen(signs, next_us, heeds_changes)
        self._unfinished.discard(topic)

    def look_again(self, topic: Topic) -> None:
        """Has the next round look at a topic, whatever has changed: some owners did not do what was asked of them."""
        self._unfinished.add(topic)

    def forget_except(self, topics: set[Topic]) -> None:
        """Forgets topics that are gone."""
        self._seen = {topic: seen for topic, seen in self._seen.items() if topic in topics}
        self._unfinished &= topics

    def _heeds_changes(self, policy: RetentionPolicy, seen: _Seen | None) -> bool:
        return seen is not None and seen.heeds_changes and seen.signs.policy == policy

    def _aged_at_us(self, topic: Topic, policy: RetentionPolicy, seen: _Seen | None) -> float:
        if seen and seen.signs.policy == policy:
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
