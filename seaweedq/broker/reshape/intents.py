"""Intents as records: the writes and comparisons of planning, undoing, committing and finishing an intent.

Pure. docs/internals/scaling.md has the protocol. The records of all segments that an intent locks contain it, and it
is always written to all of them at once: comparing the revision of each covers the intent, the state and the owner.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec.structs import replace

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_index import Records
from seaweedq.coordination import keys
from seaweedq.coordination.interface import MAX_OPERATIONS, Compare, Put
from seaweedq.coordination.records import Intent, SegmentRecord, Successor
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, SegmentConflict, SegmentNotFound
from seaweedq.segments.entry import Seal, SealedIntent, SealedSuccessor
from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.terms import FIRST_TERM, Term

MAX_SUCCESSORS = 32  # of one segment; and as many segments give way to one
OTHERS = 2  # comparisons of `finish`, of the topic and of its writer, beside those of segments, successors, new owners
MAX_PARTS = 64  # of one segment's range, with a producer table each


class Transaction(NamedTuple):
    """The comparisons of a transaction, and the writes that are applied if all of them hold."""

    compares: tuple[Compare, ...]
    writes: tuple[Put, ...]


class Ends(NamedTuple):
    """The end of each segment of an intent, and the time of its seal."""

    offsets: Mapping[int, int]
    at_us: int


class NewSegment(NamedTuple):
    """A successor that begins: its owner, the inner bounds of its producer ranges, and its first term."""

    owner: str
    cuts: tuple[int, ...]
    term: Term = FIRST_TERM


def new_intent(
    records: Records, segments: Sequence[int], points: Sequence[int], first: int, owners: Sequence[str | None] = ()
) -> Intent:
    """Returns a plan to seal `segments` and to give their range, cut at `points`, to new ones, whose ids begin at
    `first`; `owners` should own them.

    Raises SegmentNotFound, SegmentConflict (sealed, locked, or with too many parts), InvalidRequest.
    """
    for number in segments:
        _check_free(records, number)
    ordered = sorted(segments, key=lambda number: records[number].record.low)
    _check_adjacent(records, ordered)
    whole = KeyRange(records[ordered[0]].record.low, records[ordered[-1]].record.high)
    if len(points) >= MAX_SUCCESSORS:
        raise InvalidRequest(
            f"the change would create {len(points) + 1} segments; at most {MAX_SUCCESSORS} are possible"
        )
    try:
        ranges = whole.cut(points)
    except ValueError:
        raise InvalidRequest(
            f"the key hashes {list(points)[:10]} at which to split must be in ascending order, without duplicates, "
            f"above {whole.low} and below {whole.high} (the key range of segment {', '.join(map(str, ordered))})"
        ) from None
    if 2 * len(ordered) + 3 * len(ranges) + OTHERS > MAX_OPERATIONS:
        raise InvalidRequest(
            f"{len(ordered)} segments cannot be replaced by {len(ranges)} segments in one step; "
            "merge the segments first, then split the merged segment"
        )
    hints = [*owners, *[None] * len(ranges)]
    successors = tuple(Successor(first + at, r.low, r.high, hints[at]) for at, r in enumerate(ranges))
    return Intent(first, "planned", tuple(ordered), successors)


def plan(topic: Topic, records: Records, intent: Intent) -> Transaction:
    """Locks the segments."""
    return _replacing(topic, records, intent, intent)


def undo(topic: Topic, records: Records, intent: Intent) -> Transaction:
    """Unlocks the segments of a planned intent."""
    assert intent.state == "planned"
    return _replacing(topic, records, intent, None)


def commit(topic: Topic, records: Records, intent: Intent) -> Transaction:
    """Commits the intent: it can no longer be undone. The caller adds that it is the owner, and lives."""
    return _replacing(topic, records, intent, replace(intent, state="committed"))


def finish(
    topic: Topic, records: Records, intent: Intent, ended: Ends, successors: Mapping[int, NewSegment]
) -> Transaction:
    """Seals the segments, and opens the successors."""
    ids = tuple(successor.id for successor in intent.successors)
    writes = {
        number: records[number].replace(
            state="sealed",
            owner=None,
            successors=tuple(one.id for one in intent.successors if _overlaps(records[number].record, one)),
            end_offset=ended.offsets[number],
            sealed_us=ended.at_us,
            intent=None,
        )
        for number in intent.segments
    }
    state: Literal["open"] = "open"
    for one in intent.successors:
        before = tuple(n for n in intent.segments if _overlaps(records[n].record, one))
        owner, cuts, term = successors[one.id]
        begun = SegmentRecord(one.low, one.high, state, before, (), owner, None, ended.at_us, cuts=cuts, term=term)
        writes[one.id] = Versioned.new(begun)
    absent = tuple(Compare(_key(topic, number), 0) for number in ids)
    topic_there = Compare(keys.TOPICS.key(topic.name), topic.revision)
    return Transaction(
        (*_unchanged(topic, records, intent), *absent, topic_there),
        tuple(Put(_key(topic, number), keys.SEGMENTS.encode(held)) for number, held in writes.items()),
    )


def seal_of(intent: Intent, whole: KeyRange) -> Seal:
    """Returns the seal by which an intent ends the chain of a segment with that range."""
    within = [one for one in intent.successors if one.low < whole.high and whole.low < one.high]
    successors = tuple(SealedSuccessor(one.id, one.low, one.high) for one in intent.successors)
    sealed = SealedIntent(intent.id, intent.segments, successors)
    return Seal(tuple(one.id for one in within), tuple((one.low, one.high) for one in within), sealed)


def resume(topic: Topic, records: Records, sealed: SealedIntent) -> Transaction:
    """Commits again what a seal proves to have been committed, though the records have forgotten it; undoes plans that
    have one of its segments. Raises SegmentConflict if a segment of it has given way to others."""
    successors = tuple(Successor(one.id, one.low, one.high) for one in sealed.successors)
    intents: dict[int, Intent | None] = {}
    for number in sealed.segments:
        record = records[number].record if number in records else None
        other = record.intent if record else None
        if record is None or record.state != "open" or (other and other.state == "committed"):
            raise SegmentConflict(
                f"according to the files of topic {topic.name!r}, one split or merge replaced all of the segments "
                f"{list(sealed.segments)}, but another split or merge replaced, or will replace, segment {number}",
                segment=number,
            )
        intents |= dict.fromkeys(other.segments if other else ())
    intents |= dict.fromkeys(sealed.segments, Intent(sealed.id, "committed", sealed.segments, successors))
    compares = [Compare(_key(topic, number), records[number].revision) for number in intents]
    writes = [
        Put(_key(topic, number), keys.SEGMENTS.encode(records[number].replace(intent=intent)))
        for number, intent in intents.items()
    ]
    absent = [Compare(_key(topic, one.id), 0) for one in successors]
    return Transaction((*compares, *absent, Compare(keys.TOPICS.key(topic.name), topic.revision)), tuple(writes))


def locks(records: Records, intent: Intent) -> bool:
    """Tells whether all its segments have this very intent, according to these records."""
    return all(number in records and records[number].record.intent == intent for number in intent.segments)


def _check_free(records: Records, number: int) -> None:
    if number not in records:
        raise SegmentNotFound(f"the topic has no segment {number}", segment=number)
    record = records[number].record
    if record.state != "open":
        raise SegmentConflict(
            f"segment {number} was replaced by the segments {list(record.successors)}",
            segment=number,
            successors=list(record.successors),
        )
    if record.intent:
        raise SegmentConflict(
            f"segment {number} is already being replaced by the segments {[s.id for s in record.intent.successors]}",
            segment=number,
        )


def _check_adjacent(records: Records, ordered: list[int]) -> None:
    if not ordered or len(set(ordered)) != len(ordered) or len(ordered) > MAX_SUCCESSORS:
        raise InvalidRequest(
            f"the request names the segments {list(ordered)[:40]}; name 1 to {MAX_SUCCESSORS} different segments"
        )
    for left, right in pairwise(ordered):
        if records[left].record.high != records[right].record.low:
            raise InvalidRequest(
                f"segment {left} ends at key hash {records[left].record.high}, but segment {right} "
                f"begins at key hash {records[right].record.low}; only segments with adjacent key "
                "ranges can be merged"
            )
    if (parts := sum(len(records[number].record.parts) for number in ordered)) > MAX_PARTS:
        raise SegmentConflict(
            f"segments {list(ordered)} cannot be merged: the merged segment would have {parts} "
            f"tables of producers' sequence numbers, and at most {MAX_PARTS} are possible; try again when more "
            "producers have been idle for a day",
            parts=parts,
        )


def _overlaps(record: SegmentRecord, successor: Successor) -> bool:
    return record.low < successor.high and successor.low < record.high


def _replacing(topic: Topic, records: Records, intent: Intent, now: Intent | None) -> Transaction:
    writes = [
        Put(_key(topic, number), keys.SEGMENTS.encode(records[number].replace(intent=now)))
        for number in intent.segments
    ]
    return Transaction(_unchanged(topic, records, intent), tuple(writes))


def _unchanged(topic: Topic, records: Records, intent: Intent) -> tuple[Compare, ...]:
    return tuple(Compare(_key(topic, number), records[number].revision) for number in intent.segments)


def _key(topic: Topic, number: int) -> str:
    return keys.SEGMENTS.key(topic.name, topic.record.incarnation, number)
