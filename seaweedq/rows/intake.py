"""The rules by which messages of a request are decoded, and the errors that name those that are refused."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

import msgspec
from msgspec.structs import replace

from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge
from seaweedq.segments.layout import Layout

MAX_ROWS = 1_000_000
MAX_ERRORS = 1_000  # named in an answer: a producer sends the others again as often as it is told of so many
MAX_INVALID = 10_000
MAX_REASON = 300  # characters: a reason may repeat the name of a field, of which a client may make a body full
MAX_AHEAD_US = 3600 * 1_000_000
MAX_EXPIRES_S = 36_525 * 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_US, MAX_US = ((t.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for t in (datetime.min, datetime.max))


def _unknown(_now_us: int) -> int | None:
    return None


class Intake(msgspec.Struct, frozen=True, dict=True):
    """The topic's layout and key field, the limits, and two times (microseconds since the epoch).

    `now_us` is the broker's own time, which messages get that have none. Lifetimes count from the time of the cluster
    then; a time that is too far ahead is judged by it, too. `cluster_time` returns that time, None if it is not known.
    It is asked once, and for a message alone that states a time. Threads decode `at` a time that was asked before.
    """

    layout: Layout
    key_field: str | None
    max_message_bytes: int
    now_us: int
    max_request_bytes: int = 16 * 1024 * 1024
    cluster_time: Callable[[int], int | None] = _unknown

    def at(self, cluster_us: int | None) -> "Intake":
        """Returns the same at this time of the cluster."""
        return replace(self, cluster_time=lambda _: cluster_us)

    @cached_property
    def cluster_us(self) -> int | None:
        """The time of the cluster, None if it is not known."""
        return self.cluster_time(self.now_us)

    @property
    def lifetime_from_us(self) -> int:
        """Returns the time from which lifetimes count. Raises TimeUnknown."""
        if self.cluster_us is None:
            raise TimeUnknown
        return self.cluster_us

    @property
    def judged_from_us(self) -> int:
        """Returns the time by which a time that is too far ahead is judged."""
        return self.now_us if self.cluster_us is None else self.cluster_us


class Refusal(Exception):
    """Raised with the reason for which a message is refused."""


class Doubt(Exception):
    """Raised by the fast path if the messages of a request have to be decoded one by one."""


class TimeUnknown(Exception):
    """Raised for a message with a lifetime, if the time of the cluster is not known."""


def refuse(errors: Sequence[tuple[int, str]], at_least: bool = False) -> None:
    """Raises InvalidMessages if there are any errors, each an index and a reason; `at_least` says that more may follow.

    Decoders stop after MAX_INVALID errors, so that a request of bad rows alone costs little; `invalid` is a lower bound
    then. Of a reason that is longer than MAX_REASON the middle is left out.
    """
    if errors:
        half = (MAX_REASON - 3) // 2
        shown = [
            (index, reason if len(reason) <= MAX_REASON else f"{reason[:half]}...{reason[-half:]}")
            for index, reason in errors[:MAX_ERRORS]
        ]
        named = [{"index": index, "reason": reason} for index, reason in shown]
        detail = invalid_detail(len(errors), *shown[0], at_least)
        raise InvalidMessages(detail, errors=named, invalid=len(errors))


def invalid_detail(count: int, first: int, reason: str, at_least: bool = False) -> str:
    """Returns the detail of an error about `count` invalid messages, or more, of which the one at `first` has this
    reason."""
    if count == 1:
        return f"message {first} is not valid: {reason}"
    least = "at least " if at_least or count >= MAX_INVALID else ""
    return f"{least}{count} messages are not valid; the first is message {first}: {reason}"


def too_large(what: str, size: int, limit_bytes: int, index: int) -> MessageTooLarge:
    """Returns the error for a message over the limit."""
    detail = (
        f"{what} of message {index}: its {size} bytes exceed the limit of {limit_bytes}; upload large payloads and "
        "publish them by reference"
    )
    return MessageTooLarge(detail, limit_bytes=limit_bytes, index=index)


def check_count(count: int) -> None:
    """Raises InvalidRequest for no rows, and for more than MAX_ROWS."""
    if count == 0:
        raise InvalidRequest("the request has no messages")
    if count > MAX_ROWS:
        raise InvalidRequest(f"the request has {count} messages; the limit is {MAX_ROWS}", value=count, bound=MAX_ROWS)
