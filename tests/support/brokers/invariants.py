"""All invariants of what coordination holds, the dear ones too: for the end of a test, when nobody writes any more."""

from seaweedq.broker.subscriptions.cursor import broken_by
from seaweedq.broker.topics.invariants import broken_in_topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.coordination.records import SegmentRecord
from tests.support.brokers.stored import record_of


async def check_invariants(coordination: Coordination) -> None:
    """The records of all active topics, and the cursors of their subscriptions, hold together."""
    for entry in (await read_all(coordination, keys.TOPICS.prefix()))[0]:
        (name,) = keys.TOPICS.parse(entry.key)
        record = record_of(keys.TOPICS, entry.value)
        if record.state == "active":
            segments = await _segments(coordination, name, record.incarnation)
            assert broken_in_topic(segments) == [], (name, segments)
            await _check_cursors(coordination, name, record.incarnation, segments)


async def _segments(coordination: Coordination, name: str, incarnation: int) -> dict[int, SegmentRecord]:
    entries, _ = await read_all(coordination, keys.SEGMENTS.prefix(name, incarnation))
    return {keys.SEGMENTS.parse(entry.key)[2]: record_of(keys.SEGMENTS, entry.value) for entry in entries}


async def _check_cursors(
    coordination: Coordination, name: str, incarnation: int, segments: dict[int, SegmentRecord]
) -> None:
    epochs = {
        keys.SUBSCRIPTIONS.parse(entry.key)[2]: record_of(keys.SUBSCRIPTIONS, entry.value).epoch
        for entry in (await read_all(coordination, keys.SUBSCRIPTIONS.prefix(name, incarnation)))[0]
    }
    for entry in (await read_all(coordination, keys.CURSORS.prefix(name, incarnation)))[0]:
        *_, subscription, number = keys.CURSORS.parse(entry.key)
        cursor = record_of(keys.CURSORS, entry.value)
        if number not in segments:  # put late; the sweep of tombstones removes it
            assert await coordination.get(keys.TOMBSTONES.key(name, incarnation, number)), (name, subscription, number)
            continue
        assert broken_by(None, cursor, segments[number].end_offset) == [], (name, subscription, number, cursor)
        assert cursor.epoch <= epochs[subscription], (name, subscription, number, cursor)
