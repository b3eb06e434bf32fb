"""What decoding a request needs to know, and how it says which messages it refuses."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge
from seaweedq.segments.layout import Layout

MAX_ROWS = 1_000_000
MAX_ERRORS = 100
MAX_INVALID = 10_000
MAX_AHEAD_US = 3600 * 1_000_000
MAX_EXPIRES_S = 36_525 * 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_US, MAX_US = ((t.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for t in (datetime.min, datetime.max))


@dataclass(frozen=True, slots=True)
class Intake:
    """The topic's layout and key field, the limits, and the broker's time (microseconds since the epoch)."""

    layout: Layout
    key_field: str | None
    max_message_bytes: int
    now_us: int
    max_request_bytes: int = 16 * 1024 * 1024


class Refused(Exception):
    """Why one message is not taken."""


class Doubt(Exception):
    """The columns of a request hold something that has to be looked at row by row."""


def refuse(errors: Sequence[tuple[int, str]]) -> None:
    """Raises InvalidMessages if there are any errors, each an index and a reason.

    Decoders stop looking after MAX_INVALID, so that a request of nothing but bad rows costs little; `invalid` then is
    a lower bound.
    """
    if errors:
        named = [{"index": index, "reason": reason} for index, reason in errors[:MAX_ERRORS]]
        count = f"{'at least ' if len(errors) >= MAX_INVALID else ''}{len(errors)}"
        detail = f"messages that are not valid: {count}; the first is {errors[0][0]}: {errors[0][1]}"
        raise InvalidMessages(detail, errors=named, invalid=len(errors))


def too_large(what: str, size: int, limit_bytes: int, index: int) -> MessageTooLarge:
    """The error for a message over the limit."""
    detail = (
        f"{what} of message {index} is {size} bytes, over {limit_bytes}; "
        "upload large payloads and publish them by reference"
    )
    return MessageTooLarge(detail, limit_bytes=limit_bytes, index=index)


def check_count(count: int) -> None:
    """Raises InvalidRequest for no rows, and for more than MAX_ROWS."""
    if count == 0:
        raise InvalidRequest("no messages")
    if count > MAX_ROWS:
        raise InvalidRequest(f"{count} messages are more than {MAX_ROWS}", value=count, bound=MAX_ROWS)
