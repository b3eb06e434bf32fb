"""The names of the leases and consumers of one subscription at its dispatcher. Delivery knows them by number.

Pure: the time is an argument. A lease is *open* as long as it holds a message that is neither answered nor over its
deadline, which the deliveries of its segments say. One that has ended is remembered for a while, so that its name gets
nothing else, and its late acks count; of very many the last MOST_ENDED, so that their memory is bounded. A seek ends
all leases, and forgets them but for their names, which get nothing in the new epoch for as long.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

from seaweedq.broker.subscriptions.consumers.stream_leases import Streams
from seaweedq.errors import LeaseEnded, LeaseOfAnother

UNKNOWN = -1  # no lease and no consumer has this number
ANYBODY = ""  # pulls without a consumer count as one
MOST_ENDED = 100_000  # leases of about 0.5 KB: an hour's deadline and short leases would make millions


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
        the epoch before, and LeaseOfAnother where the lease is another consumer's, and both have names."""
        if name in self._sought:
            raise LeaseEnded(f"lease {name!r} has ended by a seek; a new pull takes another name", lease=name)
        lease = self._by_name.get(name)
        if lease and consumer is not None and lease.consumer not in (self.known_consumer(consumer), self._anybody):
            raise of_another(name, consumer)
        return lease

    @property
    def _anybody(self) -> int:
        return self.known_consumer(ANYBODY)

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
        """Returns the number of a consumer; one that nobody has where it never got anything."""
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
            self._forget(lease)
        used = {*consumers, *(lease.consumer for lease in self._by_number.values())}
        if self._made:
            used.add(self._made.consumer)
        self._consumers = {name: number for name, number in self._consumers.items() if number in used}
        self._sought = {name: until_s for name, until_s in self._sought.items() if now_s < until_s}
        self.streams.sweep(held, now_s)

    def _forget(self, lease: Lease) -> None:
        del self._by_number[lease.number]
        if self._by_name.get(lease.name) is lease:
            del self._by_name[lease.name]


def of_another(name: str, consumer: str) -> LeaseOfAnother:
    """Returns the refusal of a lease that is not this consumer's."""
    return LeaseOfAnother(f"lease {name!r} is not consumer {consumer!r}'s", lease=name, consumer=consumer)


def _ended_s(lease: Lease) -> float:
    return lease.ended_s or 0.0
