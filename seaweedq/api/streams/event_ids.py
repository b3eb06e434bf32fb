"""The ids of a subscription's events: `{lease}.{n}`. Pure.

The leases of a stream are named `{stream}.{serial}`. n says which message of the lease it is: it rises in the order in
which they are sent, and is the offset, above which stand the digits of the segment where that is not 0. So what is
behind an id is known to whoever knows what the lease still holds, also after acks, and at another dispatcher.
"""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.broker.subscriptions.leases import Position, parse_lease
from seaweedq.errors import InvalidPositions

DIGITS = 18  # of an offset
SEGMENT_STEP: int = 10**DIGITS
MAX_STREAM = 44  # characters; with a serial it is the name of a lease
SHOWN = 100
_ID = re.compile(r"(?P<lease>[A-Za-z0-9._-]{1,64})\.(?P<n>0|[1-9][0-9]{0,35})")


@dataclass(frozen=True, slots=True)
class EventId:
    """The id of the last event that a client has; stream and serial are None where the lease is none of a stream's."""

    stream: str | None
    serial: int
    segment: int
    offset: int

    @staticmethod
    def parse(text: str) -> "EventId":
        """Returns the id in a text. Raises InvalidPositions."""
        found = _ID.fullmatch(text)
        if found is None:
            raise InvalidPositions(
                f"{text[:SHOWN]!r} is no id of an event, which has the name of a lease, a dot and a number",
                value=text[:SHOWN],
            )
        segment, offset = divmod(int(found["n"]), SEGMENT_STEP)
        stream, serial = parse_lease(found["lease"]) or ("", 0)
        return EventId(stream if 0 < len(stream) <= MAX_STREAM else None, serial, segment, offset)


def id_at(position: Position) -> str:
    """Returns the id of the event at a position; where nothing was sent yet one before all events."""
    return f"{position.lease}.{lease_number(max(0, position.segment), max(0, position.offset))}"


def lease_number(segment: int, offset: int) -> int:
    """Returns the n of a message."""
    return segment * SEGMENT_STEP + offset


def lease_numbers(segments: pa.Array, offsets: pa.Array) -> pa.StringArray:
    """Returns the n of each message of a batch."""
    texts = offsets.cast(pa.string())
    if segments.null_count == 0 and not pc.any(pc.not_equal(segments, 0)).as_py():
        return texts
    long = pc.binary_join_element_wise(segments.cast(pa.string()), pc.utf8_lpad(texts, DIGITS, "0"), "")
    return pc.if_else(pc.equal(segments, 0), texts, long)
