"""Pulls that wait here for messages of subscriptions that other brokers dispatch: they share one long poll.

One pull at a time is handed on to the dispatcher with its wait; that is the long poll. The others queue here, cost no
connection, and are asked nothing. When the one at the dispatcher has its answer, messages or none, the next is handed
on, the longest waiting first: there may be more. One that is cancelled gives its turn on; one whose wait is over is
handed on without a wait, since an empty answer is the dispatcher's alone.

A pull that finds somebody at the dispatcher asks first what there is now, unless that one has waited for DRY_S: then
there is nothing. Thousands that come at once would cost both brokers a request each, and a slow machine its leases. One
that may hold messages already, whose lease's name was used before, or whose consumer may have come back, always asks.

In `ordered` each consumer has a queue of its own: what one consumer does not get says nothing of another.

Where the dispatcher does not answer, or is another one by now, all who queued for it meanwhile are told at once, and
look for it anew. Nothing is kept here: a broker that dies takes its queues with it, and its clients pull elsewhere.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import NamedTuple
from weakref import WeakValueDictionary

from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, Unavailable

DRY_S = 0.2  # who waits for so long at a dispatcher that is not slow was told that there is nothing
KNOWN = 10_000  # modes that are remembered
MODE_S = 5.0  # for so long: the next subscription of the same name may have another mode


class _Mode(NamedTuple):
    """Whether a subscription is `ordered`, and when its record was read (monotonic)."""

    is_ordered: bool
    read_s: float


class Queue:
    """The pulls that wait for one dispatcher's messages, in `ordered` those of one consumer. `is_taken`: one of them is
    there."""

    def __init__(self, is_of_one: bool = False) -> None:
        self.is_of_one = is_of_one
        self.consumers: Counter[str] = Counter()  # of those that queue here
        self._turn = asyncio.Lock()  # the first that waits gets it
        self._moved = 0  # how often the dispatcher did not answer, or was another one
        self._since_s = inf  # monotonic: since when one waits there

    @property
    def is_taken(self) -> bool:
        """Whether a pull waits at the dispatcher."""
        return self._turn.locked()

    def is_dry(self, now_s: float) -> bool:
        """Tells whether the pull at the dispatcher has waited so long that there is nothing."""
        return now_s - self._since_s >= DRY_S

    @asynccontextmanager
    async def turn(self, until: Deadline, check: Callable[[], None], consumer: str = "") -> AsyncIterator[float]:
        """Waits for the turn, until the deadline at most, and yields the seconds that are left then. Raises what
        `check` does, and NotOwner where the dispatcher has moved meanwhile."""
        moved = self._moved
        self.consumers[consumer] += 1
        try:
            async with asyncio.timeout(until.left_s):
                await self._turn.acquire()
        except TimeoutError:
            is_over = True
        else:
            is_over = False
        finally:
            self.consumers[consumer] -= 1
            if not self.consumers[consumer]:
                del self.consumers[consumer]
        if is_over:
            yield 0.0
            return
        try:
            if self._moved != moved:  # it says nothing of those who have queued since
                raise NotOwner("the broker that dispatched the subscription did not answer another pull")
            try:
                check()
                left_s = until.left_s
                self._since_s = until.end_s - left_s
                yield left_s
            except Unavailable:
                self._moved += 1
                raise
        finally:
            self._since_s = inf
            self._turn.release()


class RelayedWaits:
    """The queues of the subscriptions that other brokers dispatch."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._assignment = assignment
        self._clock = clock
        self._modes: dict[tuple[Topic, str], _Mode] = {}
        self._queues: WeakValueDictionary[tuple[Topic, str, str | None], Queue] = WeakValueDictionary()

    async def queue(self, topic: Topic, name: str, consumer: str | None) -> Queue:
        """Returns the queue of a pull. Raises NeedsNewerBroker."""
        if found := self._queues.get((topic, name, None)):
            return found
        own = (topic, name, consumer or "")
        if found := self._queues.get(own):
            return found
        key = own if await self._is_ordered(topic, name) else (topic, name, None)
        return self._queues.setdefault(key, Queue(is_of_one=key == own))

    def queued(self) -> dict[tuple[Topic, str], Counter[str]]:
        """Returns the consumers of the pulls that queue here, by subscription; those at a dispatcher are not among
        them."""
        found: dict[tuple[Topic, str], Counter[str]] = {}
        for (topic, name, _), queue in list(self._queues.items()):
            if queue.consumers:
                found.setdefault((topic, name), Counter()).update(queue.consumers)
        return found

    async def _is_ordered(self, topic: Topic, name: str) -> bool:
        """Tells whether the subscription is `ordered`, as it was MODE_S ago at most; one that does not exist is."""
        now_s = self._clock.monotonic_s()
        known = self._modes.get((topic, name))
        if known and now_s - known.read_s < MODE_S:
            return known.is_ordered
        there = await self._assignment.read(topic, name)
        if there is None:
            return True
        if len(self._modes) >= KNOWN:
            self._modes.clear()
        self._modes[topic, name] = _Mode(there.record.mode == "ordered", now_s)
        return there.record.mode == "ordered"
