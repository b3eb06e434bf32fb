"""When retention looks at a topic's files: a listing costs a request a segment, so nothing is listed before something
can be due, and not again before something has changed.

By age: a segment's first file is not older than the segment; once it was listed, its time is known. By size: owners
report how many bytes their segments have. By acks: cursors are in coordination. Of a topic in which nothing has moved
since the last look (the ends of its files, what is acked, the policy) nothing is listed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.retention.due import SLACK_US, File
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.retention.rounds import MAX_SKEW_US
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination.records import RetentionPolicy


@dataclass(frozen=True, slots=True)
class Signs:
    """What says that something may be due: what the last look saw of it need not be looked at again."""

    policy: RetentionPolicy
    aged: bool
    is_over: bool
    flushed: Mapping[int, int]
    acked: Mapping[int, int] | None


@dataclass(slots=True)
class _Seen:
    """The last look at a topic: its signs, and when the next file may be due by its age (microseconds since 1970)."""

    signs: Signs
    next_us: float


class Looks:
    """Decides which topics to look at. What it knows of earlier looks costs nothing but listings when it is lost."""

    def __init__(self, catalog: Catalog, files: TopicFiles, positions: TopicPositions) -> None:
        self._catalog = catalog
        self._files = files
        self._positions = positions
        self._seen: dict[Topic, _Seen] = {}

    async def signs(self, topic: Topic, now_us: int) -> Signs | None:
        """Returns the signs that something of a topic may be due, None where nothing can be. Raises Unavailable."""
        policy = topic.record.config.retention
        if not policy.enforced or not policy.takes:
            self._seen.pop(topic, None)
            return None
        seen = self._seen.get(topic)
        aged = now_us >= self._aged_at_us(topic, policy, seen)
        if not aged and policy.max_bytes is None and not policy.delete_read:
            return None
        positions = await self._positions.positions(topic, sizes=policy.max_bytes is not None)
        over = policy.max_bytes is not None and sum(p.size_bytes for p in positions.values()) > policy.max_bytes
        acked = await self._files.acked(topic) if policy.keep_unread or policy.delete_read else None
        if not (aged or over or (policy.delete_read and acked and any(acked.values()))):
            return None
        signs = Signs(policy, aged, over, {number: one.flushed for number, one in positions.items()}, acked)
        return None if seen and seen.signs == signs else signs

    def looked(self, topic: Topic, signs: Signs, left: Mapping[int, Sequence[File]]) -> None:
        """Notes a look, and the files that it has `left`."""
        max_age_s = signs.policy.max_age_s
        first_us = min((files[0].modified_us for files in left.values() if files), default=inf)
        next_us = inf if max_age_s is None else first_us + max_age_s * 1e6 + SLACK_US + MAX_SKEW_US
        self._seen[topic] = _Seen(signs, next_us)

    def forget_except(self, topics: set[Topic]) -> None:
        """Forgets topics that are gone."""
        self._seen = {topic: seen for topic, seen in self._seen.items() if topic in topics}

    def _aged_at_us(self, topic: Topic, policy: RetentionPolicy, seen: _Seen | None) -> float:
        if policy.max_age_s is None:
            return inf
        if seen and seen.signs.policy == policy:
            return seen.next_us
        created_us = min((known.record.created_us for known in self._catalog.records(topic).values()), default=0)
        return created_us + policy.max_age_s * 1e6 + SLACK_US + MAX_SKEW_US
