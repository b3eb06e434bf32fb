"""The leases of streams: one stream takes one lease after another, each of which is named `{stream}.{serial}`. Pure.

A client that comes back names the last message that it has. What the stream's leases hold behind that goes first, in
the order in which it was sent: by serial, segment and offset. So the position of a stream is all that its broker has to
know, and the same request under the same position gets the same messages, at any broker.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.delivery.window import Array
from seaweedq.concurrency.signal import Signal

LEFT_S = 120.0  # for so long a connection that has left gets nothing
FEW = 64  # numbers that are faster looked up one by one than by arrays


@dataclass(frozen=True, slots=True)
class Position:
    """The last message that a connection of a stream has sent: a lease by its serial, and a message of it. With
    `resumed` a client has named it, whose lease may be gone; then it counts as the very beginning."""

    stream: str
    connection: str
    consumer: str
    max_in_flight: int
    serial: int = 0
    segment: int = -1
    offset: int = -1
    resumed: bool = False

    @property
    def lease(self) -> str:
        """Returns the name of the lease."""
        return name_lease(self.stream, self.serial)

    def at(self, serial: int, segment: int = -1, offset: int = -1) -> "Position":
        """Returns the position behind another message of the stream."""
        return replace(self, serial=serial, segment=segment, offset=offset, resumed=False)

    def behind(self, serial: int, segment: int, offsets: Offsets) -> Offsets:
        """Returns those offsets of a lease's segment that come behind this position."""
        if serial != self.serial or segment > self.segment:
            return offsets if serial >= self.serial else offsets[:0]
        return offsets[offsets > self.offset] if segment == self.segment else offsets[:0]


def name_lease(stream: str, serial: int) -> str:
    """Returns the name of a lease of a stream."""
    return f"{stream}.{serial}"


def parse_lease(name: str) -> tuple[str, int] | None:
    """Returns the stream and the serial that the name of a lease has; None where it is none of a stream's."""
    stream, _, serial = name.rpartition(".")
    if not stream or not (serial.isascii() and serial.isdigit()) or len(serial) > 18 or serial[0] == "0" != serial:
        return None
    return stream, int(serial)


@dataclass(slots=True)
class StreamLeases:
    """The leases of one stream that may hold something, as serials by number; `last` is the greatest serial. `freed`
    wakes those who wait until the stream holds less."""

    last: int = 0
    serials: dict[int, int] = field(default_factory=dict)
    freed: Signal = field(default_factory=Signal)

    def holding(self, numbers: Collection[int], least: int) -> list[tuple[int, int]]:
        """Returns the serials, from `least` on, and the numbers of those leases that are among `numbers`, the ones that
        hold something, by serial. It forgets the others once they are many: a lease that has ended never holds anything
        again."""
        if len(self.serials) > 2 * len(numbers) + FEW:
            self.serials = {number: self.serials[number] for number in numbers if number in self.serials}
        return sorted((serial, n) for n in numbers if (serial := self.serials.get(n, -1)) >= least)

    def mine(self, numbers: Array) -> Array:
        """Tells of which numbers of leases this stream's are."""
        if len(numbers) < FEW:
            few: Array = np.fromiter((number in self.serials for number in numbers.tolist()), bool, len(numbers))
            return few
        own = np.fromiter(self.serials, np.int64, len(self.serials))
        found: Array = np.isin(numbers, own)
        return found


class Streams:
    """The streams of one subscription, and the connections that have left."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamLeases] = {}
        self._left: dict[str, float] = {}

    def of(self, stream: str) -> StreamLeases:
        """Returns the leases of a stream."""
        return self._streams.get(stream) or StreamLeases()

    def add(self, name: str, number: int) -> None:
        """Takes in a lease that has messages, if its name is one of a stream's."""
        if parsed := parse_lease(name):
            stream = self._streams.setdefault(parsed[0], StreamLeases())
            stream.serials[number] = parsed[1]
            stream.last = max(stream.last, parsed[1])

    def free(self, name: str) -> None:
        """Wakes those who wait until the stream of a lease holds less."""
        if (parsed := parse_lease(name)) and (stream := self._streams.get(parsed[0])):
            stream.freed.wake()

    def wake_all(self) -> None:
        """Wakes all who wait until a stream holds less."""
        for stream in self._streams.values():
            stream.freed.wake()

    def leave(self, connection: str, now_s: float) -> None:
        """Has a connection get nothing any more: a pull of it may still wait here."""
        self._left[connection] = now_s

    def has_left(self, connection: str) -> bool:
        """Tells whether a connection has left."""
        return connection in self._left

    def sweep(self, held: Collection[int], now_s: float) -> None:
        """Forgets the leases that are not among `held`, the streams that have no other ones, and connections that left
        long ago. Pulls whose leases are named as those of a stream make one, too, which nobody asks for its turn."""
        for name, stream in list(self._streams.items()):
            stream.serials = {number: serial for number, serial in stream.serials.items() if number in held}
            if not stream.serials:
                del self._streams[name]
        self._left = {one: left_s for one, left_s in self._left.items() if now_s - left_s < LEFT_S}
