"""Subscribing: the service that dispatches subscriptions and hands them over, and the way of requests to dispatchers.

The search finds the broker that answers a request about a subscription: its dispatcher, or the one that would become
it.

**Pulls share one long poll.** One pull at a time is handed on to the dispatcher with its wait; that is the long poll.
The others queue here, cost no connection, and are asked nothing. When the one at the dispatcher has its answer,
messages or none, the next is handed on, the longest waiting first: there may be more. One that is cancelled gives its
turn on; one whose wait is over is handed on without a wait, since an empty answer is the dispatcher's alone.

A pull that finds another one at the dispatcher asks first for messages of now, unless that one has waited for DRY_S:
then there are none. Thousands that come at once would cost both brokers a request each, and a slow machine its leases.
One that may hold messages already, whose lease's name was used before, or whose consumer may have come back, always
asks.

In `ordered` each consumer has a queue of its own: an empty answer to one consumer says nothing of another.

If the dispatcher does not answer, or is another one by now, all pulls that queued for it meanwhile are told at once,
and search for it anew. Nothing is kept here: a broker that dies takes its queues with it, and its clients pull
elsewhere.

**Reports.** Once a second the dispatchers are told how many pulls queue here, and whose, so that a subscription shows
all of its consumers. One call goes to each dispatcher with such a queue, for all of its subscriptions, and none while
nothing queues. A queue that is empty by now is told as such once. A report that is lost is followed by the next one; a
broker that dies is forgotten by the dispatchers (pull_queue). Names are bounded: of very many queues the pulls alone
count.

**Handovers.** A living dispatcher hands subscriptions over when it is about to leave, and when another broker is the
preferred one. The second is only about balance, so it waits until the brokers have been the same for a while. A
handover that fails is tried again; a broker that leaves gives up those that take too long, and others take them over
after its death.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple
from weakref import WeakValueDictionary

from seaweedq.broker.context import ClusterView, Context
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.read.request_search import Search, SearchContext, SearchRequest
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import Waits, WaitsCall
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.subscriptions.admin import Seeking, Starts, SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.lag import LagMeter
from seaweedq.broker.subscriptions.open_subscriptions import CursorStore
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import Signal, gather_bounded
from seaweedq.coordination.membership import Membership
from seaweedq.errors import NeedsNewerBroker, NotOwner, SeaweedqError, Unavailable

PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
MARGIN_S = 5.0
DRY_S = 0.2  # a pull that waits so long at a dispatcher that is not slow was told that there is nothing
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
        patience_s = self.context.timeout_s + MARGIN_S  # one that cannot read a segment insists for `timeout_s`
        return Search(self.context, topic, asked, _DispatcherLocator(self, topic, name, patience_s))


@dataclass(slots=True)
class _DispatcherLocator:
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
        """Waits for the turn, until the deadline at most, and yields the seconds that are left then. Raises the errors
        of `check`, and NotOwner if the dispatcher has moved meanwhile."""
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
            if self._moved != moved:  # it says nothing of pulls that have queued since
                raise NotOwner(
                    "an earlier pull failed at the broker that was delivering the subscription's messages; possibly, "
                    "another broker delivers these messages now"
                )
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
    """Reports the pulls that queue here to the dispatchers, and takes the reports of other brokers."""

    def __init__(
        self, view: ClusterView, waits: RelayedWaits, assignment: Assignment, dispatcher: Dispatcher, peers: Peers
    ) -> None:
        self._view = view
        self._waits = waits
        self._assignment = assignment
        self._dispatcher = dispatcher
        self._peers = peers
        self._reported: dict[str, list[Key]] = {}  # by dispatcher: the queues of its last report

    async def run(self) -> None:
        """Reports for ever."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report()

    async def report(self) -> None:
        """Reports the pulls that queue here now to each dispatcher."""
        now: defaultdict[str, dict[Key, Counter[str]]] = defaultdict(dict)
        for key, consumers in self._waits.queued().items():
            with suppress(SeaweedqError):
                now[await self._assignment.dispatcher(*key)][key] = consumers
        for broker, before in self._reported.items():
            now[broker] = {key: now[broker].get(key, Counter()) for key in before} | now[broker]
        brokers = self._view.roster.brokers
        now.pop(self._view.membership.broker, None)  # just taken over: its queues are told
        calls = [self._send(brokers[one].record.url, queues) for one, queues in now.items() if one in brokers]
        self._reported = {broker: [key for key in queues if queues[key]] for broker, queues in now.items()}
        self._reported = {broker: keys for broker, keys in self._reported.items() if keys}
        await asyncio.gather(*calls)

    async def _send(self, url: str, queues: dict[Key, Counter[str]]) -> None:
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

    def receive(self, call: WaitsCall) -> bool:
        """Takes in the report of another broker, as far as this one dispatches."""
        now_s = self._view.clock.monotonic_s()
        told = {(one.topic, one.incarnation, one.subscription): one for one in call.waits}
        for subscription in self._dispatcher.subscriptions():
            topic = subscription.topic
            if one := told.get((topic.name, topic.record.incarnation, subscription.name)):
                subscription.remote_pulls.update(call.broker, one.pulls, one.consumers, now_s)
        return True


TICK_S = 0.5  # between two searches for subscriptions that other brokers are preferred for
SETTLED_S = 2.0  # for so long a broker is preferred before it gets one
GIVERS = 8  # handovers at a time
logger = logging.getLogger(__name__)


class Handoff:
    """Hands the open subscriptions of one dispatcher over."""

    def __init__(self, dispatcher: Dispatcher, assignment: Assignment, membership: Membership, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._assignment = assignment
        self._membership = membership
        self._clock = clock
        self._since_s: dict[tuple[Topic, str], tuple[str, float]] = {}

    async def run(self) -> None:
        """Hands over the subscriptions of other preferred brokers, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            await gather_bounded(GIVERS, self._hand_over, self._due())

    async def leave(self) -> None:
        """Takes nothing over any more, and hands everything over."""
        self._assignment.leave()
        await gather_bounded(GIVERS, self._hand_over, self._dispatcher.names())

    def _due(self) -> list[tuple[Topic, str]]:
        """Returns the subscriptions that another broker has been preferred for long enough."""
        now_s, mine = self._clock.monotonic_s(), self._membership.broker
        preferred = {key: self._assignment.preferred(*key) for key in self._dispatcher.names()}
        known = self._since_s
        self._since_s = {
            key: known[key] if key in known and known[key][0] == broker else (broker, now_s)
            for key, broker in preferred.items()
            if broker != mine
        }
        return [key for key, (_, since_s) in self._since_s.items() if now_s - since_s >= SETTLED_S]

    async def _hand_over(self, subscription: tuple[Topic, str]) -> None:
        topic, name = subscription
        try:
            await self._dispatcher.hand_over(topic, name)
            logger.info("subscription %s of topic %s was handed over to another broker", name, topic.name)
        except NeedsNewerBroker:
            pass  # the record that cannot be read has a log line of its own, and this is tried twice a second
        except SeaweedqError as error:
            logger.warning(
                "subscription %s of topic %s could not be handed over to another broker: %s", name, topic.name, error
            )
        except Exception:  # a defect must end neither the others under way nor the task
            logger.exception("subscription %s of topic %s could not be handed over to another broker", name, topic.name)


class Subscribing(Service):
    """The subscriptions of which this broker is the dispatcher, the way to those of others, and their changes."""

    def __init__(self, context: Context, reading: Reading, log: Log) -> None:
        view, coordination = context.view, context.coordination
        readables = reading.readables
        cursors = CursorStore(coordination, view.catalog.end_of)
        starts = Starts(readables, reading.positions, view.catalog)
        catalog = view.catalog
        self.assignment = Assignment(coordination, view.roster, view.membership, lambda: catalog.generation)
        self.dispatcher = Dispatcher(
            view, self.assignment, cursors, readables, log.commit, context.settings.publish_timeout_s
        )
        self.admin = SubscriptionAdmin(coordination, self.assignment, self.dispatcher, starts, context.changes)
        self.seeking = Seeking(self.dispatcher, starts, context.changes)
        self.handoff = Handoff(self.dispatcher, self.assignment, view.membership, view.clock)
        self.waits = RelayedWaits(self.assignment, view.clock)
        self.reports = WaitReports(view, self.waits, self.assignment, self.dispatcher, context.peers)
        self.finder = DispatcherFinder(reading.search, self.assignment, self.dispatcher)
        self.meter = LagMeter(self.dispatcher, readables, reading.positions, view.clock)

    async def run(self) -> Tasks:
        """Hands over subscriptions that others are to dispatch, and reports the pulls that wait here."""
        return {"handover": self.handoff.run(), "reports of waits": self.reports.run()}

    async def hand_over(self) -> None:
        """Gives the subscriptions to other dispatchers."""
        await self.handoff.leave()

    def begin_stop(self) -> None:
        """Answers the pulls that wait for messages."""
        self.dispatcher.close()

    def forget(self, topic: Topic) -> None:
        """Closes the subscriptions of a topic that is being deleted, or gone."""
        self.dispatcher.forget(topic)
        self.assignment.forget(topic)
