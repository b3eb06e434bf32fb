"""Segments without a record: retention has removed them, or coordination, which went back, has forgotten them.

The counter of a name is above each id that was ever given out, and stays when its topic goes. The transaction that
plans a successor raises it, and notes the id in the intent. So of an id that is not below the counter, or that an
intent still promises, coordination has never had a segment.
"""

from collections.abc import Iterable

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.versioned import Unreadable, Versioned


def may_have_been(number: int, next_id: int, records: Iterable[SegmentRecord]) -> bool:
    """Tells whether a segment without a record may have had one, given the topic's counter and its segments'
    records."""
    promised = {one.id for record in records if record.intent for one in record.intent.successors}
    return number < next_id and number not in promised


async def was_removed(coordination: Coordination, name: str, incarnation: int | None, number: int) -> bool:
    """Tells whether a segment that has no record may have had one; `incarnation` is that of the topic, None if there is
    none. True also if a newer broker alone can tell. Raises CoordinationUnavailable."""
    there = await coordination.get(keys.COUNTERS.key(name))
    counter = keys.COUNTERS.read(there) if there else None
    if isinstance(counter, Unreadable):
        return True
    next_id = counter.record.next if counter else 0
    if incarnation is None:
        return number < next_id
    entries, _ = await read_all(coordination, keys.SEGMENTS.prefix(name, incarnation))
    read = [keys.SEGMENTS.read(entry) for entry in entries]
    return may_have_been(number, next_id, [held.record for held in read if isinstance(held, Versioned)])
