"""Refuses transactions that would break an invariant of a topic's records (broker/topics/invariants).

A transaction is judged by its comparisons: if it compares the revision that this broker knows of a key, the record
before it is known. Otherwise the change is not judged: the comparison fails, or the writer removes records that belong
to no topic. A refused transaction writes nothing, and its writer continues as after any other error.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from seaweedq.broker.topics.invariants import Known, broken_by, broken_by_topic
from seaweedq.broker.topics.segment_records import Records
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Entry, Put
from seaweedq.coordination.records.topics import SegmentRecord, TopicRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.invariants import InvariantViolated

TopicOf = Callable[[str], Versioned[TopicRecord] | None]
T = TypeVar("T", bound=msgspec.Struct)
RecordsOf = Callable[[str, int], Records]
logger = logging.getLogger(__name__)


def check_writes(
    compares: Sequence[Compare], writes: Sequence[Put | Delete], topic_of: TopicOf, records_of: RecordsOf
) -> None:
    """Logs all of a transaction that breaks an invariant of the topics and segments that it writes, and raises
    InvariantViolated. `topic_of` and `records_of` give what is known, by name and incarnation."""
    revisions = {compare.key: compare.revision for compare in compares}
    found = [*_broken_topics(revisions, writes, topic_of), *_broken_segments(revisions, writes, topic_of, records_of)]
    if found:
        logger.error("a transaction is refused: %s; compares %s; writes %s", "; ".join(found), compares, writes)
        raise InvariantViolated(f"a change was refused because it would break an invariant: {found[0][:500]}")


def _broken_topics(revisions: Mapping[str, int], writes: Sequence[Put | Delete], topic_of: TopicOf) -> Iterator[str]:
    for write in writes:
        if write.key.startswith(keys.TOPICS.prefix()):
            (name,) = keys.TOPICS.parse(write.key)
            known = topic_of(name)
            if known and revisions.get(write.key) == known.revision:
                after = _written(keys.TOPICS, write)
                yield from (f"topic {name!r}: {text}" for text in broken_by_topic(known.record, after))


def _broken_segments(
    revisions: Mapping[str, int], writes: Sequence[Put | Delete], topic_of: TopicOf, records_of: RecordsOf
) -> Iterator[str]:
    touched: dict[tuple[str, int], dict[int, Put | Delete]] = {}
    for write in writes:
        if write.key.startswith(keys.SEGMENTS.prefix()):
            name, incarnation, number = keys.SEGMENTS.parse(write.key)
            touched.setdefault((name, incarnation), {})[number] = write
    for (name, incarnation), found in touched.items():
        known, topic = records_of(name, incarnation), topic_of(name)
        before = {n: known[n].record if n in known else None for n in found}
        if all(_is_compared(known, n, revisions.get(write.key), write) for n, write in found.items()):
            alive = topic is not None and topic.record.incarnation == incarnation and topic.record.state == "active"
            yield from (f"topic {name!r}: {text}" for text in broken_by(before, _after(found), alive))


def _is_compared(known: Records, number: int, revision: int | None, write: Put | Delete) -> bool:
    """Tells whether the transaction replaces the known record of a segment; it may delete any record."""
    if revision is None:
        return isinstance(write, Delete)
    return revision == (known[number].revision if number in known else 0)


def _after(found: Mapping[int, Put | Delete]) -> Known:
    after: dict[int, SegmentRecord | None] = {}
    for number, write in found.items():
        after[number] = _written(keys.SEGMENTS, write)
    return after


def _written(kind: keys.KeyKind[T], write: Put | Delete) -> T | None:
    return kind.require(Entry(write.key, write.value, 0)).record if isinstance(write, Put) else None
