"""The hold of leases on offsets of one segment: who has which, until when. A delay is a hold of nobody's.

Pure. Leases and consumers are numbers, whose names the subscription knows (consumers/leases). A lease may have offsets
of many segments; here it is a number at each offset, with a deadline.
"""

from collections.abc import Iterable, Mapping
from math import inf

import numpy as np

from seaweedq.broker.log.intervals import Offsets, Run
from seaweedq.broker.subscriptions.delivery.progress import Asker, Progress
from seaweedq.broker.subscriptions.delivery.window import ACKING, DELAYED, FREE, HELD, NOBODY, STATES, Array


class Holds(Progress):
    """The offsets of a segment that are leased or delayed, beside its progress."""

    def __init__(
        self, acked_to: int, acked: Iterable[Run], attempts: Mapping[int, int] | None, delivered_to: int
    ) -> None:
        self._position = acked_to  # no offset between `acked_to` and this one is FREE
        self._next_s = inf  # no lease and no delay ends before
        self._pending: list[Offsets] = []  # leases that are not begun
        self.has_given_again = False  # else no offset has a lease *before*, which an ack need not look for
        super().__init__(acked_to, acked, attempts, delivered_to)

    @property
    def in_flight(self) -> int:
        """Returns how many offsets are leased."""
        return self.count(HELD)

    def count(self, state: int) -> int:
        """Returns how many offsets are in a state."""
        if self.is_idle:
            return 0
        return int(np.count_nonzero(self._window.span("state", self.acked_to) == state))

    def counts(self) -> list[int]:
        """Returns how many offsets beyond `acked_to` are in each state (window)."""
        if self.is_idle:
            return [0] * STATES
        counts: list[int] = np.bincount(self._window.span("state", self.acked_to), minlength=STATES).tolist()
        return counts

    def next_deadline(self) -> float | None:
        """Returns a time before which no lease and no delay ends (monotonic seconds), or None."""
        return None if self._next_s == inf else self._next_s

    def hold_again(self, offsets: Offsets, lease: int, consumer: int, due_s: float) -> None:
        """Takes over a lease of the dispatcher before, which has counted its attempt; a delay where it is nobody's."""
        offsets = offsets[(offsets >= self.acked_to) & (offsets < self._window.end)]
        offsets = offsets[self._window.of("state", offsets) == FREE]
        self._hold(offsets, lease, consumer, due_s)
        if lease == NOBODY:
            self._window.move(offsets, DELAYED)

    def begin_leases(self, due_s: float) -> None:
        """Gives the leases that have no deadline this one."""
        for offsets in self._not_begun():
            self._window.put("due_s", offsets, due_s)
            self._next_s = min(self._next_s, due_s)

    def held_by(self, lease: int) -> Offsets:
        """Returns what a lease has and did not answer."""
        held = self._window.find(self.acked_to, HELD)
        mine: Offsets = held[self._window.of("lease", held) == lease]
        return mine

    def held(self) -> tuple[Offsets, Array]:
        """Returns what is leased, and the lease of each."""
        held = self._window.find(self.acked_to, HELD)
        return held, self._window.of("lease", held)

    def leases_of(self, offsets: Offsets) -> Array:
        """Returns the lease that each of these offsets had last."""
        return self._window.of("lease", offsets)

    def last_had_by(self, asker: Asker) -> Offsets:
        """Returns what a lease may ack: what it has, what it had last and is with nobody, or again with its consumer,
        and what is being acked."""
        here = self._window.find(self.acked_to, HELD, FREE, DELAYED, ACKING)
        mine: Offsets = here[self._is_of(here, asker)]
        return mine

    def holders(self) -> set[int]:
        """Returns the numbers of the leases that have something."""
        return set(np.unique(self._window.of("lease", self._window.find(self.acked_to, HELD))).tolist())

    def consumers(self) -> set[int]:
        """Returns the numbers of the consumers that have leased something."""
        if self.is_idle:
            return set()
        return set(np.unique(self._window.of("consumer", self._window.find(self.acked_to, HELD))).tolist())

    def consumer(self) -> int:
        """Returns the consumer that has leased messages, or had those that are delayed, in `ordered`; or NOBODY."""
        if self.is_idle:
            return NOBODY
        waiting = self._window.of("consumer", self._window.find(self.acked_to, HELD, DELAYED))
        return int(waiting.max(initial=NOBODY))

    def waiting(self) -> Offsets:
        """Returns the offsets that are leased or delayed."""
        return self._window.find(self.acked_to, HELD, DELAYED)

    def holds_of(self, offsets: Offsets) -> tuple[Array, Array, Array]:
        """Returns lease, consumer and deadline of `waiting` offsets; a delayed one has no lease and no consumer."""
        nobody = self._window.of("state", offsets) == DELAYED
        lease, consumer = self._window.of("lease", offsets), self._window.of("consumer", offsets)
        lease[nobody] = consumer[nobody] = NOBODY
        return lease, consumer, self._window.of("due_s", offsets)

    def held_among(self, offsets: Offsets, asker: Asker) -> Offsets:
        """Returns those of these offsets that the asker holds, sorted: not what its consumer has again by now."""
        here = self._here(np.unique(offsets))
        mine: Offsets = here[(self._window.of("state", here) == HELD) & self._is_of(here, asker)]
        return mine if asker.lease is None else mine[self._window.of("lease", mine) == asker.lease]

    def extend(self, held: Offsets, due_s: float) -> None:
        """Gives leased offsets another deadline."""
        if len(held):
            self._window.put("due_s", held, due_s)
            self._next_s = min(self._next_s, due_s)

    def _hold(self, offsets: Offsets, lease: int, consumer: int, due_s: float) -> None:
        if len(offsets):
            self._window.reach(int(offsets[-1]) + 1)
        self._window.move(offsets, HELD)
        others = offsets[self._window.of("consumer", offsets) != consumer]
        if len(others):
            self._window.put("before", others, NOBODY)
        for name, value in (("lease", lease), ("consumer", consumer), ("due_s", due_s)):
            self._window.put(name, offsets, value)
        self._next_s = min(self._next_s, due_s)

    def _free(self, offsets: Offsets) -> None:
        if len(offsets):
            self._window.move(offsets, FREE)
            self._position = min(self._position, int(offsets[0]))

    def _not_begun(self) -> list[Offsets]:
        """Returns the leases without a deadline that did not end, and forgets them."""
        pending, self._pending = self._pending, []
        found = []
        for given in pending:
            offsets = self._here(given)
            mask = (self._window.of("state", offsets) == HELD) & (self._window.of("due_s", offsets) == inf)
            if mask.any():
                found.append(offsets[mask])
        return found

    def _here(self, offsets: Offsets) -> Offsets:
        """Returns those of sorted offsets that are in the window."""
        if len(offsets) and self.acked_to <= offsets[0] and offsets[-1] < self._window.end:
            return offsets
        return offsets[(offsets >= self.acked_to) & (offsets < self._window.end)]

    def _is_of(self, offsets: Offsets, asker: Asker) -> Array:
        if asker.anything:
            given: Array = self._window.of("consumer", offsets) != NOBODY
            return given | (offsets >= self.sought_below)
        consumer = self._window.of("consumer", offsets)
        mine: Array = consumer != NOBODY if asker.consumer is None else consumer == asker.consumer
        if asker.lease is None:
            return mine
        named: Array = self._window.of("lease", offsets) == asker.lease
        if self.has_given_again:
            named |= self._window.of("before", offsets) == asker.lease
        return mine & named
