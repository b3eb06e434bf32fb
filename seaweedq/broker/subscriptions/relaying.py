"""The way of requests to a dispatcher: the search for it, and the pulls that wait here for the messages of others.

The search finds the broker that answers a request about a subscription: its dispatcher, or the one that would become
it.

**Pulls share one long poll.** One pull at a time is handed on to the dispatcher with its wait; that is the long poll.
The others queue here, cost no connection, and are asked nothing. When the one at the dispatcher has its answer,
messages or none, the next is handed on, the longest waiting first: there may be more. One that is cancelled gives its
turn on; one whose wait is over is handed on without a wait, since an empty answer is the dispatcher's alone.

A pull that finds somebody at the dispatcher asks first what there is now, unless that one has waited for DRY_S: then
there is nothing. Thousands that come at once would cost both brokers a request each, and a slow machine its leases. One
that may hold messages already, whose lease's name was used before, or whose consumer may have come back, always asks.

In `ordered` each consumer has a queue of its own: what one consumer does not get says nothing of another.

If the dispatcher does not answer, or is another one by now, all who queued for it meanwhile are told at once, and
look for it anew. Nothing is kept here: a broker that dies takes its queues with it, and its clients pull elsewhere.

**Reports.** Once a second the dispatchers are told how many pulls queue here, and whose, so that a subscription shows
all of its consumers. One call goes to each dispatcher with such a queue, for all of its subscriptions, and none while
nothing queues. A queue that is empty by now is told as such once. A report that is lost is followed by the next one; a
broker that dies is forgotten by the dispatchers (pull_queue). Names are bounded: of very many queues the pulls alone
count.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple
from weakref import WeakValueDictionary

from seaweedq.broker.context import ClusterView
from seaweedq.broker.read.request_search import Search, SearchContext, SearchRequest
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import Waits, WaitsCall
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import NotOwner, NotReady, SeaweedqError, Unavailable

PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
MARGIN_S = 5.0
DRY_S = 0.2  # who waits for so long at a dispatcher that is not slow was told that there is nothing
KNOWN = 10_000  # modes that are remembered
MODE_S = 5.0  # for so long: the next subscription of the same name may have another mode
WAITS = "waits"
REPORT_S = 1.0
ANSWER_S = 1.0
MOST_NAMES = 2_000  # of a report
Key = tuple[Topic, str]


@dataclass(frozen=True, slots=True)
class DispatcherFinder:
    """Begins the searches for dispatchers of subscriptions."""

    context: SearchContext
    assignment: Assignment
    dispatcher: Dispatcher

    def search(self, topic: Topic, name: str, asked: SearchRequest) -> Search:
        """Begins the search for the broker that answers a request about a subscription."""
        patience_s = (
            self.context.timeout_s + MARGIN_S
        )  # a dispatcher that cannot read a segment insists for `timeout_s`
        return Search(self.context, topic, asked, _Dispatcher(self, topic, name, patience_s))

    def check_lease(self) -> None:
        """Raises NotReady where this broker has lost its lease, so that another one may dispatch by now. One that stops
        in order keeps its lease until all are answered; one that stops since its lease has ended does not have it."""
        if not self.context.view.membership.valid():
            raise NotReady("this broker's lease has run out")


@dataclass(slots=True)
class _Dispatcher:
    finder: DispatcherFinder
    topic: Topic
    name: str
    patience_s: float
    pause_s: float = PAUSE_S
    moved: Signal | None = None

    async def locate(self) -> str | None:
        if self.finder.dispatcher.has(self.topic, self.name):
            return self.finder.context.view.membership.broker
        return await self.finder.assignment.dispatcher(self.topic, self.name)

    def failed(self, error: Unavailable) -> float | None:
        if type(error) not in (NotOwner, Unavailable):
            return None
        self.finder.assignment.invalidate(self.topic, self.name)
        pause_s, self.pause_s = self.pause_s, min(LONGEST_PAUSE_S, self.pause_s * 2)
        return pause_s


class _Mode(NamedTuple):
    """Whether a subscription is `ordered`, and when its record was read (monotonic)."""

    is_ordered: bool
    read_s: float


class RelayQueue:
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
        self._queues: WeakValueDictionary[tuple[Topic, str, str | None], RelayQueue] = WeakValueDictionary()

    async def queue(self, topic: Topic, name: str, consumer: str | None) -> RelayQueue:
        """Returns the queue of a pull. Raises NeedsNewerBroker."""
        if found := self._queues.get((topic, name, None)):
            return found
        own = (topic, name, consumer or "")
        if found := self._queues.get(own):
            return found
        key = own if await self._is_ordered(topic, name) else (topic, name, None)
        return self._queues.setdefault(key, RelayQueue(is_of_one=key == own))

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


class WaitReports:
    """Tells the dispatchers what queues here, and takes what other brokers tell."""

    def __init__(
        self, view: ClusterView, waits: RelayedWaits, assignment: Assignment, dispatcher: Dispatcher, peers: Peers
    ) -> None:
        self._view = view
        self._waits = waits
        self._assignment = assignment
        self._dispatcher = dispatcher
        self._peers = peers
        self._told: dict[str, set[Key]] = {}  # by dispatcher: what it believes to queue here

    async def run(self) -> None:
        """Reports for ever."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report()

    async def report(self) -> None:
        """Tells each dispatcher what queues here now."""
        now: defaultdict[str, dict[Key, Counter[str]]] = defaultdict(dict)
        for key, consumers in self._waits.queued().items():
            with suppress(SeaweedqError):
                now[await self._assignment.dispatcher(*key)][key] = consumers
        for broker, before in self._told.items():
            now[broker] = {key: now[broker].get(key, Counter()) for key in before} | now[broker]
        brokers = self._view.roster.brokers
        now.pop(self._view.membership.broker, None)  # just taken over: those who queue are told
        calls = [self._tell(brokers[one].record.url, queues) for one, queues in now.items() if one in brokers]
        self._told = {broker: {key for key in queues if queues[key]} for broker, queues in now.items()}
        self._told = {broker: keys for broker, keys in self._told.items() if keys}
        await asyncio.gather(*calls)

    async def _tell(self, url: str, queues: dict[Key, Counter[str]]) -> None:
        left = iter(range(MOST_NAMES))
        waits = [
            Waits(
                topic.name,
                topic.record.incarnation,
                name,
                consumers.total(),
                [consumer for consumer, _ in zip(consumers, islice(left, len(consumers)), strict=False)],
            )
            for (topic, name), consumers in queues.items()
        ]
        with suppress(SeaweedqError):
            await self._peers.call(url, WAITS, WaitsCall(self._view.membership.broker, waits), bool, ANSWER_S)

    def hear(self, call: WaitsCall) -> bool:
        """Takes in what another broker tells. What is not dispatched here is left out."""
        now_s = self._view.clock.monotonic_s()
        told = {(one.topic, one.incarnation, one.subscription): one for one in call.waits}
        for subscription in self._dispatcher.subscriptions():
            topic = subscription.topic
            if one := told.get((topic.name, topic.record.incarnation, subscription.name)):
                subscription.remote_pulls.update(call.broker, one.pulls, one.consumers, now_s)
        return True
