"""Handoff of subscriptions by a living dispatcher: when it is about to leave, and when another broker is the preferred
one.

The second is only about balance, so it waits until the brokers have been the same for a while. A handover that fails is
tried again; a broker that leaves gives up those that take too long, and others take them over after its death.
"""

import asyncio
import logging

from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination.membership import Membership
from seaweedq.errors import NeedsNewerBroker, SeaweedqError

TICK_S = 0.5
SETTLED_S = 2.0
GIVERS = 8
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
        """Hands over what another broker is preferred for, for ever."""
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
            logger.info("subscription %s of %s was handed to another broker", name, topic.name)
        except NeedsNewerBroker:
            pass  # the record that cannot be read has a log line of its own, and this is tried twice a second
        except SeaweedqError as error:
            logger.warning("subscription %s of %s could not be handed to another broker: %s", name, topic.name, error)
        except Exception:  # a defect must end neither the others under way nor the task
            logger.exception("subscription %s of %s could not be handed to another broker", name, topic.name)
