"""Reports of a broker about the pulls that queue here for subscriptions of others (relayed_waits): once a second their
dispatchers are told how many there are, and whose, so that a subscription shows all of its consumers.

One call goes to each dispatcher with such a queue, for all of its subscriptions, and none where nothing queues. A queue
that is empty by now is told as such once. A report that is lost is followed by the next one; a broker that dies is
forgotten by the dispatchers (consumers/elsewhere). Names are bounded: of very many queues the pulls alone count.
"""

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import islice

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import Waits, WaitsCall
from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.dispatch.relayed_waits import RelayedWaits
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.errors import SeaweedqError

WAITS = "waits"
REPORT_S = 1.0
ANSWER_S = 1.0
MOST_NAMES = 2_000  # of a report
Key = tuple[Topic, str]


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
                subscription.elsewhere.hear(call.broker, one.pulls, one.consumers, now_s)
        return True
