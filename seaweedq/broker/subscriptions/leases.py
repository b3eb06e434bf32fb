"""The leases of one subscription at its dispatcher: which offsets of a segment they hold, and their names. Pure: the
time is an argument.

A lease may have offsets of many segments. In each segment it is a number at each offset, with a deadline
(`LeaseTable`); a delay is a hold of nobody's. Names belong to the subscription (`Leases`). A lease is *open* as long as
it holds a message that is neither answered nor over its deadline. One that has ended is remembered for a while, so that
its name gets nothing else, and its late acks count; of very many the last MOST_ENDED, so that their memory is bounded.
A seek ends all leases, and forgets them but for their names, which get nothing in the new epoch for as long.

A stream takes one lease after another, each of which is named `{stream}.{serial}`. A client that comes back names the
last message that it has. The messages that the stream's leases hold behind that go first, in the order in which they
were sent: by serial, segment and offset. So the position of a stream is all that its broker has to know, and the same
request under the same position gets the same messages, at any broker.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

import msgspec
import numpy as np
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.window import ACKING, DELAYED, FREE, HELD, NOBODY, Array, Window
from seaweedq.concurrency.futures import Signal
from seaweedq.errors import LeaseEnded, LeaseOfAnother

LEFT_S = 120.0  # for so long a connection that has left gets nothing
ASKS_S = 40.0  # a stream with a reader asks at least each COMMENT_S (api/streams/session)
FEW = 64  # numbers that are faster looked up one by one than by arrays
UNKNOWN = -1  # no lease and no consumer has this number
ANYBODY = ""  # pulls without a consumer count as one
MOST_ENDED = 100_000  # leases of about 0.5 KB: an hour's deadline and short leases would make millions


@dataclass(frozen=True, slots=True)
class Asker:
    """The consumer or lease in whose name something is acked, nacked or extended; None for any. A lease comes with its
    consumer. `anything`: it may ack whatever lies in the window, delivered by this dispatcher or not, unless it may
    have been delivered before a seek."""

    consumer: int | None = None
    lease: int | None = None
    anything: bool = False


class LeaseTable:
    """The offsets of a window that are leased or delayed, and when the next of them is due."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.next_s = inf  # no lease and no delay ends before (monotonic)
        self.has_given_again = False  # else no offset has a lease *before*, which an ack need not look for
        self._pending: list[Offsets] = []  # leases that are not begun

    def lease(self, offsets: Offsets, lease: int, consumer: int, due_s: float = inf, attempts: int = 1) -> None:
        """Leases available offsets. Without a deadline (inf) the leases are to be begun, or cancelled, by the
        caller."""
        self.window.lease(offsets, lease, consumer, due_s, attempts)
        if due_s == inf:
            self._pending.append(offsets)
        else:
            self.next_s = min(self.next_s, due_s)

    def delay(self, offsets: Offsets, due_s: float | Array) -> None:
        """Holds offsets back for nobody until `due_s`."""
        if len(offsets):
            self.window.delay(offsets, due_s)
            self.next_s = min(self.next_s, float(np.min(due_s)))

    def take_over(self, offsets: Offsets, lease: int, consumer: int, due_s: float) -> None:
        """Takes over a lease of the dispatcher before, which has counted its attempt; a delay if it is nobody's."""
        offsets = offsets[(offsets >= self.window.acked_to) & (offsets < self.window.end)]
        offsets = offsets[self.window.values("state", offsets) == FREE]
        self.lease(offsets, lease, consumer, due_s, attempts=0)
        if lease == NOBODY:
            self.delay(offsets, due_s)

    def begin(self, due_s: float) -> None:
        """Gives the leases that have no deadline this one."""
        for offsets in self._not_begun():
            self.window.extend(offsets, due_s)
            self.next_s = min(self.next_s, due_s)

    def cancel(self) -> None:
        """Takes the leases back that have no deadline: nobody got those messages."""
        for offsets in self._not_begun():
            self.window.take_back(offsets)

    def extend(self, held: Offsets, due_s: float) -> None:
        """Gives leased offsets another deadline."""
        if len(held):
            self.window.extend(held, due_s)
            self.next_s = min(self.next_s, due_s)

    def next_deadline(self) -> float | None:
        """Returns a time before which no lease and no delay ends (monotonic seconds), or None."""
        return None if self.next_s == inf else self.next_s

    def over(self, now_s: float) -> tuple[Offsets, Offsets]:
        """Returns the offsets whose leases are over, and those whose delays are."""
        waiting = self.waiting()
        over = waiting[self.window.values("due_s", waiting) <= now_s]
        is_held = self.window.values("state", over) == HELD
        return over[is_held], over[~is_held]

    def find_next(self) -> None:
        """Finds the time at which the next lease or delay ends."""
        self.next_s = float(self.window.values("due_s", self.waiting()).min(initial=inf))

    def held_by(self, lease: int) -> Offsets:
        """Returns the offsets of a lease that are not answered."""
        held = self.window.find(self.window.acked_to, HELD)
        mine: Offsets = held[self.window.values("lease", held) == lease]
        return mine

    def held(self) -> tuple[Offsets, Array]:
        """Returns the leased offsets, and the lease of each."""
        held = self.window.find(self.window.acked_to, HELD)
        return held, self.window.values("lease", held)

    def last_had_by(self, asker: Asker) -> Offsets:
        """Returns the offsets that a lease may ack: those that it has, those that it had last and that are with nobody,
        or again with its consumer, and those that are being acked."""
        here = self.window.find(self.window.acked_to, HELD, FREE, DELAYED, ACKING)
        mine: Offsets = here[self.is_of(here, asker)]
        return mine

    def holders(self) -> set[int]:
        """Returns the numbers of the leases that have something."""
        return set(np.unique(self.held()[1]).tolist())

    def consumers(self) -> set[int]:
        """Returns the numbers of the consumers that have leased something."""
        if self.window.is_idle:
            return set()
        return set(np.unique(self.window.values("consumer", self.held()[0])).tolist())

    def consumer(self) -> int:
        """Returns the consumer that has leased messages, or had those that are delayed, in `ordered`; or NOBODY."""
        window = self.window
        if window.end <= window.acked_to:
            return NOBODY
        return int(window.values("consumer", window.find(window.acked_to, HELD, DELAYED)).max(initial=NOBODY))

    def waiting(self) -> Offsets:
        """Returns the offsets that are leased or delayed."""
        return self.window.find(self.window.acked_to, HELD, DELAYED)

    def holds_of(self, offsets: Offsets) -> tuple[Array, Array, Array]:
        """Returns lease, consumer and deadline of `waiting` offsets; a delayed one has no lease and no consumer."""
        nobody = self.window.values("state", offsets) == DELAYED
        lease, consumer = self.window.values("lease", offsets), self.window.values("consumer", offsets)
        lease[nobody] = consumer[nobody] = NOBODY
        return lease, consumer, self.window.values("due_s", offsets)

    def held_among(self, offsets: Offsets, asker: Asker) -> Offsets:
        """Returns those of these offsets that the asker holds, sorted: not those that its consumer has again by now."""
        here = self.window.within(np.unique(offsets))
        mine: Offsets = here[(self.window.values("state", here) == HELD) & self.is_of(here, asker)]
        return mine if asker.lease is None else mine[self.window.values("lease", mine) == asker.lease]

    def is_of(self, offsets: Offsets, asker: Asker) -> Array:
        """Tells which of these offsets the asker had last."""
        consumer = self.window.values("consumer", offsets)
        mine: Array = consumer != NOBODY if asker.anything or asker.consumer is None else consumer == asker.consumer
        if asker.anything:
            return mine | (offsets >= self.window.sought_below)
        if asker.lease is None:
            return mine
        named: Array = self.window.values("lease", offsets) == asker.lease
        if self.has_given_again:
            named |= self.window.values("before", offsets) == asker.lease
        return mine & named

    def _not_begun(self) -> list[Offsets]:
        """Returns the leases without a deadline that did not end, and forgets them."""
        pending, self._pending = self._pending, []
        found = []
        for given in pending:
            offsets = self.window.within(given)
            mask = (self.window.values("state", offsets) == HELD) & (self.window.values("due_s", offsets) == inf)
            if mask.any():
                found.append(offsets[mask])
        return found


class Position(msgspec.Struct, frozen=True):
    """The last message that a connection of a stream has sent: a lease by its serial, and a message of it. With
    `resumed` a client has named it, whose lease may be gone; then it counts as the very beginning. If it `frees`, the
    stream's leases end with the connection. `broker` carries the connection, if that is not the dispatcher."""

    stream: str
    connection: str
    consumer: str
    max_in_flight: int
    serial: int = 0
    segment: int = -1
    offset: int = -1
    resumed: bool = False
    frees: bool = False
    broker: str = ""

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
    """Returns the stream and the serial that the name of a lease has; None if it is none of a stream's."""
    stream, _, serial = name.rpartition(".")
    if not stream or not (serial.isascii() and serial.isdigit()) or len(serial) > 18 or serial[0] == "0" != serial:
        return None
    return stream, int(serial)


@dataclass(slots=True)
class StreamLeases:
    """The leases of one stream that may hold something, as serials by number; `last` is the greatest serial. `freed`
    wakes the pulls that wait until the stream holds less."""

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
        self._asked_s: dict[str, dict[str, float]] = {}  # by consumer, of its streams, the newest one last
        self._elsewhere: dict[str, tuple[Position, float]] = {}  # by connection, and when it asked

    def get(self, stream: str) -> StreamLeases:
        """Returns the leases of a stream."""
        return self._streams.get(stream) or StreamLeases()

    def add(self, name: str, number: int) -> None:
        """Takes in a lease that has messages, if its name is one of a stream's."""
        if parsed := parse_lease(name):
            stream = self._streams.setdefault(parsed[0], StreamLeases())
            stream.serials[number] = parsed[1]
            stream.last = max(stream.last, parsed[1])

    def free(self, name: str) -> None:
        """Wakes the pulls that wait until the stream of a lease holds less."""
        if self._streams and (parsed := parse_lease(name)) and (stream := self._streams.get(parsed[0])):
            stream.freed.wake()

    def wake_all(self) -> None:
        """Wakes all pulls that wait until a stream holds less."""
        for stream in self._streams.values():
            stream.freed.wake()

    def is_newest(self, position: Position, now_s: float) -> bool:
        """Tells whether this is the newest stream of a consumer that has a name, of those that ask. Nobody may read an
        older one, whose broker does not know that yet."""
        if position.consumer == position.stream:
            return True
        asked_s = self._asked_s.get(position.consumer, {})
        if position.stream not in asked_s and (position.serial or position.resumed):  # it began earlier
            asked_s = {position.stream: now_s, **asked_s}
        asked_s[position.stream] = now_s
        self._asked_s[position.consumer] = asked_s
        return position.stream == [stream for stream, at_s in asked_s.items() if now_s - at_s < ASKS_S][-1]

    def note(self, position: Position, now_s: float) -> None:
        """Notes that a connection asks."""
        if position.broker:
            self._elsewhere[position.connection] = position, now_s

    def without_broker(self, is_alive: Callable[[str], bool]) -> list[Position]:
        """Returns the connections whose brokers have died: nobody else says that those have left."""
        return [position for position, _ in self._elsewhere.values() if not is_alive(position.broker)]

    def leave(self, position: Position, now_s: float) -> None:
        """Has a connection get nothing any more: a pull of it may still wait here."""
        self._left[position.connection] = now_s
        self._elsewhere.pop(position.connection, None)
        if position.frees:
            self._asked_s.get(position.consumer, {}).pop(position.stream, None)

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
        self._elsewhere = {name: one for name, one in self._elsewhere.items() if now_s - one[1] < LEFT_S}
        asked_s = {
            consumer: {stream: at_s for stream, at_s in streams.items() if now_s - at_s < ASKS_S}
            for consumer, streams in self._asked_s.items()
        }
        self._asked_s = {consumer: streams for consumer, streams in asked_s.items() if streams}


@dataclass(slots=True)
class Lease:
    """A lease: its name, its number, its consumer's number, the segments that it has messages of, and how many of those
    it acked durably, and nacked. Nothing of it is held since `ended_s`, as far as that was noticed."""

    name: str
    number: int
    consumer: int
    segments: set[int] = field(default_factory=set)
    acked: int = 0
    nacked: int = 0
    ended_s: float | None = None


class Leases:
    """The leases and consumers by name and number."""

    def __init__(self) -> None:
        self.streams = Streams()
        self._by_name: dict[str, Lease] = {}
        self._by_number: dict[int, Lease] = {}
        self._consumers: dict[str, int] = {}
        self._sought: dict[str, float] = {}  # names of leases that a seek has ended, and until when they are remembered
        self._newest = 0  # number of a lease or consumer
        self._made: Lease | None = None  # the last one, which may be about to be added

    def find(self, name: str) -> Lease | None:
        """Returns the lease of a name, open or remembered."""
        return self._by_name.get(name)

    def known(self, name: str, consumer: str | None) -> Lease | None:
        """Returns the lease of a name for a pull of a consumer; None for a new name. Raises LeaseEnded for a name of
        the epoch before, and LeaseOfAnother if the lease is another consumer's, and both have names."""
        if name in self._sought:
            raise LeaseEnded(f"a seek has ended lease {name!r}; use another lease name for the next pull", lease=name)
        lease = self._by_name.get(name)
        if lease and consumer is not None and lease.consumer not in map(self.known_consumer, (consumer, ANYBODY)):
            raise of_another(name, consumer)
        return lease

    def is_used(self, name: str) -> bool:
        """Tells whether a name is that of a lease, open or remembered, of this epoch or the one before."""
        return name in self._by_name or name in self._sought

    def remember(self, before: "Leases", until_s: float) -> None:
        """Takes in the names of the leases that a seek has ended, of very many the last ones."""
        names = {**before._sought, **dict.fromkeys(before._by_name, until_s)}
        self._sought = dict(list(names.items())[-MOST_ENDED:])

    def make(self, name: str | None, consumer: str) -> Lease:
        """Returns a new lease, which counts once it is `add`ed; one without a name gets one."""
        self._newest += 1
        while name is None or not name:
            name = f".{self._newest}" if not self.is_used(f".{self._newest}") else None
            self._newest += name is None
        self._made = Lease(name, self._newest, self.consumer(consumer))
        return self._made

    def add(self, lease: Lease) -> None:
        """Takes in a lease that has messages."""
        self._by_name[lease.name] = lease
        self._by_number[lease.number] = lease
        self.streams.add(lease.name, lease.number)

    def numbered(self, number: int) -> Lease | None:
        """Returns the lease with a number, as long as it is remembered."""
        return self._by_number.get(number)

    def consumer(self, name: str) -> int:
        """Returns the number of a consumer."""
        found = self._consumers.get(name)
        if found is None:
            self._newest += 1
            found = self._consumers[name] = self._newest
        return found

    def known_consumer(self, name: str) -> int:
        """Returns the number of a consumer; one that nobody has if it never got anything."""
        return self._consumers.get(name, UNKNOWN)

    def consumer_names(self) -> dict[int, str]:
        """Returns the names of all consumers by number."""
        return {number: name for name, number in self._consumers.items()}

    def count_nacked(self, numbers: dict[int, int]) -> None:
        """Takes in how many messages of some leases were nacked."""
        for number, count in numbers.items():
            if lease := self._by_number.get(number):
                lease.nacked += count

    def count_acked(self, numbers: dict[int, int]) -> None:
        """Takes in how many messages of some leases were acked durably."""
        for number, count in numbers.items():
            if lease := self._by_number.get(number):
                lease.acked += count
                self.streams.free(lease.name)

    def sweep(self, held: Collection[int], consumers: Collection[int], now_s: float, keep_s: float) -> None:
        """Forgets the leases that have held nothing for `keep_s`, the first ones of more than MOST_ENDED, and the
        consumers that nothing refers to. `held` are the leases that hold something, `consumers` those that had some
        unacked message last."""
        ended: list[Lease] = []
        for lease in self._by_number.values():
            if lease.number in held:
                lease.ended_s = None
            else:
                lease.ended_s = now_s if lease.ended_s is None else lease.ended_s
                ended.append(lease)
        ended.sort(key=_ended_s)
        over = max(bisect_right(ended, now_s - keep_s, key=_ended_s), len(ended) - MOST_ENDED)
        for lease in ended[: max(0, over)]:
            del self._by_number[lease.number]
            if self._by_name.get(lease.name) is lease:
                del self._by_name[lease.name]
        used = {*consumers, *(lease.consumer for lease in self._by_number.values())}
        if self._made:
            used.add(self._made.consumer)
        self._consumers = {name: number for name, number in self._consumers.items() if number in used}
        self._sought = {name: until_s for name, until_s in self._sought.items() if now_s < until_s}
        self.streams.sweep(held, now_s)


def of_another(name: str, consumer: str) -> LeaseOfAnother:
    """Returns the refusal of a lease that is not this consumer's."""
    return LeaseOfAnother(f"lease {name!r} does not belong to consumer {consumer!r}", lease=name, consumer=consumer)


def _ended_s(lease: Lease) -> float:
    return lease.ended_s or 0.0
