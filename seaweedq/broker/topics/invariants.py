"""Invariants of a topic's records: of each record, of each change, and of all segments of a topic. Pure.

- The open segments tile the key space: the segments that a transaction closes and those that it opens cover the same
  keys, once.
- An intent stands in all its segments or in none, and only goes forward: planned, committed, sealed. One that a chain's
  seal has *proven* is committed at once, also in place of other plans.
- A segment's term rises exactly when its record gets another owner.
- A segment's range, lineage and end never change. It has an end, and when it was sealed, exactly if it is sealed; then
  it has successors, and neither an owner nor an intent.
- A topic's incarnation never falls, and one that is being deleted stays so. Its schema goes on to the next version
  alone, which was pending, and its columns are those of a version.

`Catalog.commit` has `check_writes` refuse transactions that would break one (`broken_by`). That costs as much as the
transaction is large, whatever the topic is: a write is judged by the segments that it touches. `broken_in_topic` looks
at all segments, and is for tests and for a topic's creation.

A transaction is judged by its comparisons: if it compares the revision that this broker knows of a key, the record
before it is known. Otherwise the change is not judged: the comparison fails, or the writer removes records that belong
to no topic. A refused transaction writes nothing, and its writer continues as after any other error.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec
from msgspec import UNSET

from seaweedq.broker.topics.segment_index import Records
from seaweedq.checks import InvariantViolated
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Entry, Put
from seaweedq.coordination.records import Intent, SegmentRecord, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tiles_key_space

Known = Mapping[int, SegmentRecord | None]  # by segment; None: there is no record
TopicOf = Callable[[str], Versioned[TopicRecord] | None]
T = TypeVar("T", bound=msgspec.Struct)
RecordsOf = Callable[[str, int], Records]
logger = logging.getLogger(__name__)


def broken_by(before: Known, after: Known, alive: bool, proven: int | None = None) -> list[str]:
    """Returns the invariants that a transaction breaks which replaces `before` by `after`, the same segments.

    Invariants that were broken before are not counted. `alive`: the topic exists and is not being deleted, so that its
    open segments tile the key space; the segments of a topic that is being created are written a page at a time.
    `proven` is the id of an intent of which a chain has a seal.
    """
    found: list[str] = []
    for number, now in after.items():
        was = before[number]
        known = set(_broken_in(number, was)) if was else set()
        found += [text for text in _broken_in(number, now) if text not in known] if now else []
        found += _broken_between(number, was, now, proven) if was and now else []
    found += _split_intents(before, after, proven)
    if alive and _covered(_open(before)) != _covered(_open(after)):
        found.append(f"segments {sorted(after)} do not hold the keys after the change that they held before it")
    return found


def broken_by_topic(before: TopicRecord | None, after: TopicRecord | None) -> list[str]:
    """Returns the invariants that the change of a topic's record breaks."""
    if before is None:
        return []
    if after is None:
        return [] if before.state == "deleting" else ["the record of an active topic goes"]
    found = []
    if after.incarnation < before.incarnation:
        found.append(f"the incarnation falls from {before.incarnation} to {after.incarnation}")
    if after.incarnation == before.incarnation:
        if before.state == "deleting" != after.state:
            found.append("a topic that is being deleted is active again")
        if before.created_us != after.created_us:
            found.append("the time of creation changes")
        found += _broken_schema(before, after)
    return found


def broken_in_topic(records: Mapping[int, SegmentRecord]) -> list[str]:
    """Returns the invariants that the records of all segments of an active topic break."""
    found = [text for number, record in records.items() for text in _broken_in(number, record)]
    if not tiles_key_space(KeyRange(record.low, record.high) for record in _open(records)):
        found.append("the open segments do not tile the key space")
    found += _split_intents(dict.fromkeys(records), records)
    for number, record in records.items():
        for other in {*record.successors} & records.keys():
            if number not in records[other].predecessors:
                found.append(f"segment {number} has successor {other}, which does not have it as predecessor")
    return found


def _broken_schema(before: TopicRecord, after: TopicRecord) -> Iterator[str]:
    was, now = before.config.schema_id, after.config.schema_id
    if now != was and now != before.pending:
        yield f"the schema goes from version {was} to {now}, which was not pending"
    if now == was and after.config.columns != before.config.columns:
        yield f"version {now} of the schema gets other columns"
    if after.pending not in (UNSET, now + 1):
        yield f"version {after.pending} of the schema is pending behind {now}"


def _broken_in(number: int, record: SegmentRecord) -> Iterator[str]:
    name = f"segment {number}"
    if not 0 <= record.low < record.high <= KEY_SPACE:
        yield f"{name} has the range [{record.low}, {record.high})"
    if any(left >= right for left, right in pairwise((record.low, *record.cuts, record.high))):
        yield f"{name} has inner bounds {record.cuts} that do not rise within its range"
    if any(before >= number for before in record.predecessors):
        yield f"{name} has predecessors {record.predecessors}, whose ids are not below its own"
    if any(after <= number for after in record.successors):
        yield f"{name} has successors {record.successors}, whose ids are not above its own"
    sealed = record.state == "sealed"
    if sealed != (record.end_offset is not None) or sealed != (record.sealed_us is not None):
        yield f"{name} is {record.state}, with end {record.end_offset}, sealed at {record.sealed_us}"
    if (record.end_offset or 0) < 0:
        yield f"{name} ends at {record.end_offset}"
    if sealed != bool(record.successors):
        yield f"{name} is {record.state}, with successors {record.successors}"
    if sealed and (record.owner is not None or record.intent is not None):
        yield f"{name} is sealed, with owner {record.owner} and intent {record.intent}"
    if record.intent:
        yield from _broken_intent(number, record.intent)


def _broken_intent(number: int, intent: Intent) -> Iterator[str]:
    name = f"the intent {intent.id} of segment {number}"
    if number not in intent.segments:
        yield f"{name} is one of segments {intent.segments}"
    ids = [successor.id for successor in intent.successors]
    if ids != list(range(intent.id, intent.id + len(ids))) or not ids or min(ids) <= max(intent.segments, default=0):
        yield f"{name} has successors {ids} for {intent.segments}"
    if any(left.high != right.low for left, right in pairwise(intent.successors)):
        yield f"{name} has successors with gaps or overlaps: {intent.successors}"
    if any(successor.low >= successor.high for successor in intent.successors):
        yield f"{name} has an empty successor: {intent.successors}"


def _broken_between(number: int, was: SegmentRecord, now: SegmentRecord, proven: int | None) -> Iterator[str]:
    name = f"segment {number}"
    if was.state == "sealed":
        if now != was:
            yield f"{name} is sealed, and changes from {was} to {now}"
        return
    fixed = ("low", "high", "predecessors", "created_us", "cuts")
    if changed := [field for field in fixed if getattr(was, field) != getattr(now, field)]:
        yield f"{name} changes its {', '.join(changed)} from {was} to {now}"
    is_given = now.owner is not None and now.owner != was.owner
    if now.term <= was.term if is_given else now.term != was.term:
        yield f"{name} has the term {now.term} of {now.owner} behind {was.term} of {was.owner}"
    if now.state == "sealed":
        if was.intent is None or was.intent.state != "committed":
            yield f"{name} is sealed without a committed intent, but {was.intent}"
        elif not {*now.successors} <= {successor.id for successor in was.intent.successors}:
            yield f"{name} gets successors {now.successors} that its intent does not have: {was.intent}"
    elif was.intent and was.intent.state == "committed" and now.intent != was.intent:
        yield f"{name} loses a committed intent: {was.intent}, now {now.intent}"
    elif proven is not None:
        return
    elif was.intent is None and now.intent and now.intent.state == "committed":
        yield f"{name} gets an intent that is committed at once: {now.intent}"
    elif was.intent and now.intent and _plan(was.intent) != _plan(now.intent):
        yield f"{name} changes its intent from {was.intent} to {now.intent}"


def _plan(intent: Intent) -> tuple[object, ...]:
    return intent.id, intent.segments, intent.successors


def _split_intents(before: Known, after: Known, proven: int | None = None) -> Iterator[str]:
    """Checks that a transaction which changes an intent in one of its segments changes it in all of them, in the same
    way. A record that is deleted goes with its intent: those of a deleted topic go a page at a time."""
    changed = {n for n, now in after.items() if now and _intent(before[n]) != _intent(now)}
    for number in sorted(changed):
        for intent in filter(None, (_intent(before[number]), _intent(after[number]))):
            if missing := [other for other in intent.segments if other not in changed]:
                yield f"the intent of segment {number} changes, but not that of {missing}: {intent}"
            elif proven is None and _intent(after[number]) != _intent(after[intent.segments[0]]):
                yield f"segments {intent.segments} get different intents: {intent}"


def _intent(record: SegmentRecord | None) -> Intent | None:
    return record.intent if record else None


def _open(records: Known) -> list[SegmentRecord]:
    return [record for record in records.values() if record and record.state == "open"]


def _covered(records: Iterable[SegmentRecord]) -> list[tuple[int, int]] | None:
    """Returns the keys of some segments as disjoint intervals, None if two of them overlap."""
    runs: list[tuple[int, int]] = []
    for low, high in sorted((record.low, record.high) for record in records):
        if runs and low < runs[-1][1]:
            return None
        if runs and low == runs[-1][1]:
            runs[-1] = (runs[-1][0], high)
        else:
            runs.append((low, high))
    return runs


def check_writes(
    compares: Sequence[Compare],
    writes: Sequence[Put | Delete],
    topic_of: TopicOf,
    records_of: RecordsOf,
    proven: int | None = None,
) -> None:
    """Logs all of a transaction that breaks an invariant of the topics and segments that it writes, and raises
    InvariantViolated. `topic_of` and `records_of` return the known records, by name and incarnation."""
    revisions = {compare.key: compare.revision for compare in compares}
    segments = _broken_segments(revisions, writes, topic_of, records_of, proven)
    found = [*_broken_topics(revisions, writes, topic_of), *segments]
    if found:
        logger.error(
            "refusing a transaction, because it would break an invariant: %s; the transaction's comparisons: %s; "
            "its writes: %s",
            "; ".join(found),
            compares,
            writes,
        )
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
    revisions: Mapping[str, int],
    writes: Sequence[Put | Delete],
    topic_of: TopicOf,
    records_of: RecordsOf,
    proven: int | None,
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
            after: Known = {number: _written(keys.SEGMENTS, write) for number, write in found.items()}
            yield from (f"topic {name!r}: {text}" for text in broken_by(before, after, alive, proven))


def _is_compared(known: Records, number: int, revision: int | None, write: Put | Delete) -> bool:
    """Tells whether the transaction replaces the known record of a segment; it may delete any record."""
    if revision is None:
        return isinstance(write, Delete)
    return revision == (known[number].revision if number in known else 0)


def _written(kind: keys.KeyKind[T], write: Put | Delete) -> T | None:
    return kind.require(Entry(write.key, write.value, 0)).record if isinstance(write, Put) else None
