"""The sharing of segments among the consumers of an `ordered` subscription.

A segment is with one consumer at a time. One that has leased or delayed messages stays with its consumer; the free ones
are shared out evenly, and move as little as that allows. A consumer gets one only while it waits, or as it asks; one
that has some keeps them for ACTIVE_S after its last pull. So no segment goes to a consumer that has just gone, however
short the lives of consumers are: it is with nobody that has gone for longer than ACTIVE_S.

Names that come once, thousands a second, must neither take the segments of those that stay nor make each pull slow. So
in a crowd a consumer keeps its segments only if it pulled again within ACTIVE_S; and of those that wait only so many
are looked at as may get something: those that came first.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from heapq import nsmallest

from seaweedq.broker.subscriptions.window import NOBODY

ACTIVE_S = 1.0
CROWD = 64  # consumers, or twice as many as there are segments
REPEAT_S = 0.1  # between two pulls; two looks that lie closer together may be those of one request


def share(
    segments: Collection[int],
    held: Mapping[int, int],
    owners: Mapping[int, int],
    here: Collection[int],
    away: Collection[int] = (),
) -> dict[int, int]:
    """Returns the consumer of each segment. Pure. `held` ones keep theirs; of the others each consumer that is `here`
    or, for a while, `away` keeps its segments in `owners`, up to an even share; the rest goes to those that are
    here."""
    shares = {segment: held[segment] for segment in segments if segment in held}
    consumers = {*here, *away}
    now = {segment: shares.get(segment, owners.get(segment, NOBODY)) for segment in segments}
    whose = set(now.values())
    if len(whose) == len(segments) and whose <= consumers:  # each has another: a thousand more that wait change nothing
        return now
    if not here:
        kept = {segment: owner for segment, owner in owners.items() if segment in segments and owner in away}
        return {**kept, **shares}
    free = sorted(segment for segment in segments if segment not in held)
    counts = Counter(dict.fromkeys(consumers, 0))
    counts.update(consumer for consumer in shares.values() if consumer in counts)
    has = Counter(owners[segment] for segment in free if owners.get(segment) in counts) + counts
    quota = _quotas(len(free), counts, has)
    for segment in free:
        owner = owners.get(segment, NOBODY)
        if owner in counts and counts[owner] < quota[owner]:
            shares[segment] = owner
            counts[owner] += 1
    for segment in free:
        if segment not in shares:
            shares[segment] = min(here, key=lambda consumer: (counts[consumer] - quota[consumer], consumer))
            counts[shares[segment]] += 1
    return shares


def _quotas(free: int, counts: Mapping[int, int], has: Mapping[int, int]) -> dict[int, int]:
    """Returns how many segments each consumer gets, of the free ones and those that it holds (`counts`). Those that
    hold more than an even share get no more, and those beyond it make the share of the others smaller. The rest of a
    division goes to those that have most."""
    sharing, over = dict(counts), dict(counts)
    while over:
        least, more = divmod(free + sum(sharing.values()), len(sharing))
        over = {consumer: count for consumer, count in sharing.items() if count > least}
        sharing = {consumer: count for consumer, count in sharing.items() if count <= least}
    favoured = sorted(sharing, key=lambda consumer: (-has[consumer], consumer))[:more]
    return {**counts, **{consumer: least + (consumer in favoured) for consumer in sharing}}


class SegmentShares:
    """The consumers that pull from a subscription, by number, and the segments that each one has."""

    def __init__(self) -> None:
        self.changes = 0  # of the shares
        self._owners: dict[int, int] = {}
        self._seen_s: OrderedDict[int, float] = OrderedDict()  # the last one that pulled last
        self._first_s: dict[int, float] = {}
        self._again: set[int] = set()  # those of them that pulled more than once
        self._waiting: Counter[int] = Counter()
        self._asked: tuple[tuple[int, ...], dict[int, int], set[int], set[int]] | None = None  # of the last shares

    @contextmanager
    def waiting(self, consumer: int) -> Iterator[None]:
        """Lets a consumer count while it waits."""
        self._waiting[consumer] += 1
        try:
            yield
        finally:
            self._waiting[consumer] -= 1
            if not self._waiting[consumer]:
                del self._waiting[consumer]

    def pulls(self, consumer: int, now_s: float) -> None:
        """Notes a pull."""
        self._pass(now_s)
        if now_s - self._first_s.setdefault(consumer, now_s) >= REPEAT_S:
            self._again.add(consumer)
        self._seen_s[consumer] = now_s
        self._seen_s.move_to_end(consumer)

    def leave(self, consumer: int) -> None:
        """Lets a consumer not count any more, unless it waits or pulls again."""
        self._seen_s.pop(consumer, None)
        self._first_s.pop(consumer, None)
        self._again.discard(consumer)

    def active(self, now_s: float) -> set[int]:
        """Returns the consumers that wait, or pulled lately."""
        self._pass(now_s)
        return {*self._seen_s, *self._waiting}

    def _pass(self, now_s: float) -> None:
        """Forgets consumers that pulled too long ago."""
        while self._seen_s and now_s - self._seen_s[first := next(iter(self._seen_s))] >= ACTIVE_S:
            self.leave(first)

    def _sharers(self, segments: Collection[int], asker: int) -> tuple[set[int], set[int]]:
        """Returns the consumers that may get segments: those that wait, and the one that asks; and the others that have
        some for a while yet."""
        most = max(CROWD, 2 * len(segments))
        is_crowd = len(self._seen_s) + len(self._waiting) > most
        keep = self._again if is_crowd else self._seen_s.keys()
        here = {*self._waiting, *([] if asker == NOBODY else [asker])}
        if len(here) > most:
            here = {*nsmallest(most, here), *here.intersection(self._owners.values())}
        return here, {owner for owner in self._owners.values() if owner in keep and owner not in here}

    def next_change_s(self) -> float | None:
        """Returns the time at which the first consumer that neither waits nor pulls has its segments no more."""
        going = [self._seen_s[one] for one in self._owners.values() if one in self._seen_s and one not in self._waiting]
        return min(going) + ACTIVE_S if going else None

    def share_of(self, consumer: int, segments: Collection[int], held: Mapping[int, int], now_s: float) -> set[int]:
        """Returns the segments that a consumer gets messages of, now that it pulls."""
        self.pulls(consumer, now_s)
        shares = self._shares(segments, held, consumer)
        return {segment for segment, owner in shares.items() if owner == consumer}

    def shares(self, segments: Collection[int], held: Mapping[int, int], now_s: float) -> dict[int, int]:
        """Returns the consumer of each segment; none of a free one if nobody waits."""
        self._pass(now_s)
        return self._shares(segments, held, NOBODY)

    def _shares(self, segments: Collection[int], held: Mapping[int, int], asker: int) -> dict[int, int]:
        asked = tuple(segments), dict(held), *self._sharers(segments, asker)
        if asked != self._asked:
            self._asked = asked
            before, self._owners = self._owners, share(segments, held, self._owners, *asked[2:])
            self.changes += self._owners != before
        return self._owners
