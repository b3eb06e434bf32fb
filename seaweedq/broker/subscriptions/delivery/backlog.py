"""The backlog of a segment in a subscription: how many messages are in which state, and why none of them is delivered.
Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from seaweedq.coordination.records.subscriptions import SubscriptionRecord

Stall: TypeAlias = Literal["window", "max_in_flight", "paused"]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unacked messages of a segment: `messages` of them between `acked_to` and `end`. Of these `in_flight` are
    leased, `delayed` ones come again later, the dead letters of `dying` ones are being published, and `waiting` ones
    are for whoever pulls next; the acks of the others are on their way. `is_full`: all of the window is delivered."""

    segment: int
    acked_to: int
    end: int
    messages: int
    in_flight: int = 0
    delayed: int = 0
    dying: int = 0
    waiting: int = 0
    is_full: bool = False

    def stalled(self, record: SubscriptionRecord, in_flight: int) -> Stall | None:
        """Returns why nothing of what waits is delivered, whoever pulls; `in_flight` counts the subscription's."""
        if not self.waiting:
            return None
        if record.paused:
            return "paused"
        if in_flight >= record.max_in_flight:
            return "max_in_flight"
        return "window" if self.is_full else None


def stalled(segments: Iterable[Stall | None]) -> Stall | None:
    """Returns why a subscription is stalled, by its segments; for several reasons the one that concerns most of it."""
    found = set(segments)
    reasons: tuple[Stall, ...] = ("paused", "max_in_flight", "window")
    return next((reason for reason in reasons if reason in found), None)
