"""The next turn of a stream: messages of it that its client does not have yet, or a new lease, or nothing. Pure.

Nothing goes out over the stream's `max_in_flight`. What may have killed its consumer goes alone (choosing): while a
stream holds such messages it gets nothing, and where one is due it waits until the stream holds nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import FEW, Lease, Position, name_lease
from seaweedq.broker.subscriptions.policy import NORMAL, PullLimits
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.subscriptions.window import Array

Held = dict[int, tuple[SegmentDelivery, Offsets, Array]]  # by segment: what a stream holds, and the lease of each


@dataclass(frozen=True, slots=True)
class Resend:
    """An open lease, of which the client does not have what is behind the position."""

    lease: Lease
    position: Position

    def behind(self, segment: int, offsets: Offsets) -> Offsets:
        """Returns those offsets that the client does not have."""
        return self.position.behind(self.position.serial, segment, offsets)


@dataclass(frozen=True, slots=True)
class NewLease:
    """A new lease of at most so many messages; the first one of a new stream does not go ahead (leasing)."""

    name: str
    count: int
    is_first: bool


def held_by(subscription: Subscription, stream: str) -> Held:
    """Returns what a stream holds, by segment."""
    leases = subscription.leases.streams.of(stream)
    found: Held = {}
    for segment, cursor in subscription.cursors.items():
        if cursor.delivery.window.is_idle or not leases.serials:
            continue
        offsets, numbers = cursor.delivery.leases.held()
        mine = leases.mine(numbers)
        if mine.any():
            found[segment] = cursor.delivery, offsets[mine], numbers[mine]
    return found


def next_turn(subscription: Subscription, position: Position) -> Resend | NewLease | None:
    """Returns what a stream gets behind its position; None where it has to wait. The caller has expired the leases."""
    leases = subscription.leases
    stream, before = leases.streams.of(position.stream), position.serial
    if position.resumed and not leases.find(position.lease):
        position = position.at(0)
    held = held_by(subscription, position.stream)
    for serial, number in stream.holding(_numbers(held), position.serial):
        if _misses(held, number, serial, position) and (lease := leases.numbered(number)):
            return Resend(lease, position if serial == position.serial else position.at(serial))
    in_flight = sum(len(offsets) for _, offsets, _ in held.values())
    if in_flight >= position.max_in_flight or (in_flight and _has_to_empty(subscription, held, position.consumer)):
        return None
    name = _unused(subscription, position, max(stream.last, before))
    return NewLease(name, position.max_in_flight - in_flight, is_first=not (stream.last or before))


def _numbers(held: Held) -> dict[int, None]:
    """Returns the leases that hold something."""
    found = [numbers for _, _, numbers in held.values()]
    return dict.fromkeys(n for some in found for n in (some if len(some) < FEW else np.unique(some)).tolist())


def _misses(held: Held, number: int, serial: int, position: Position) -> bool:
    """Tells whether the client does not have all that a lease holds."""
    return any(
        len(position.behind(serial, segment, offsets[numbers == number]))
        for segment, (_, offsets, numbers) in held.items()
    )


def _unused(subscription: Subscription, position: Position, last: int) -> str:
    while subscription.leases.is_used(name := name_lease(position.stream, last + 1)):
        last += 1
    return name


def _has_to_empty(subscription: Subscription, held: Held, consumer: str) -> bool:
    """Tells whether a stream that holds something gets nothing more until it holds nothing."""
    for delivery, offsets, _ in held.values():
        if delivery.rules.kinds(delivery.window.of("attempts", offsets) - np.uint16(1)).any():
            return True
    number = subscription.leases.consumer(consumer)
    return any(delivery.kind_of(first) != NORMAL for delivery, first in _due(subscription, number))


def _due(subscription: Subscription, consumer: int) -> Iterator[tuple[SegmentDelivery, int]]:
    """Yields the first message of each segment that is due, of those that were delivered before."""
    for segment in subscription.frontier.open:
        cursor = subscription.cursors.get(segment)
        if cursor is None or cursor.delivery.is_drained(cursor.delivery.window.delivered_to):
            continue
        due = cursor.delivery.available(PullLimits(consumer, 1), cursor.delivery.window.delivered_to)
        if len(due):
            yield cursor.delivery, int(due[0])
