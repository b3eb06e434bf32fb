"""Subscribing: the services that dispatch subscriptions, and decide which broker does."""

from seaweedq.broker.context import Context
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.subscriptions.admin import Seeking, Starts, SubscriptionAdmin
from seaweedq.broker.subscriptions.assignment import Assignment
from seaweedq.broker.subscriptions.cursor_store import CursorStore
from seaweedq.broker.subscriptions.dispatcher import Dispatcher, Handoff
from seaweedq.broker.subscriptions.lag import LagMeter
from seaweedq.broker.subscriptions.relaying import DispatcherFinder, RelayedWaits, WaitReports
from seaweedq.broker.topics.catalog import Topic


class Subscribing(Service):
    """The subscriptions of which this broker is the dispatcher, the way to those of others, and what changes them."""

    def __init__(self, context: Context, reading: Reading, log: Log) -> None:
        view, coordination = context.view, context.coordination
        readables = reading.readables
        cursors = CursorStore(coordination, view.catalog.end_of)
        starts = Starts(readables, reading.positions, context.tombstones)
        self.assignment = Assignment(coordination, view.roster, view.membership)
        self.dispatcher = Dispatcher(
            view, self.assignment, cursors, readables, log.commit, context.settings.publish_timeout_s
        )
        self.admin = SubscriptionAdmin(coordination, self.assignment, self.dispatcher, starts)
        self.seeking = Seeking(self.dispatcher, starts)
        self.handoff = Handoff(self.dispatcher, self.assignment, view.membership, view.clock)
        self.waits = RelayedWaits(self.assignment, view.clock)
        self.reports = WaitReports(view, self.waits, self.assignment, self.dispatcher, context.peers)
        self.finder = DispatcherFinder(reading.search, self.assignment, self.dispatcher)
        self.meter = LagMeter(self.dispatcher, readables, reading.positions, view.clock)

    async def run(self) -> Tasks:
        """Hands over subscriptions that others are to dispatch, and tells others who waits here."""
        return {"handover": self.handoff.run(), "reports of waits": self.reports.run()}

    async def hand_over(self) -> None:
        """Gives the subscriptions to other dispatchers."""
        await self.handoff.leave()

    def begin_stop(self) -> None:
        """Answers those who wait for messages."""
        self.dispatcher.close()

    def forget(self, topic: Topic) -> None:
        """Closes the subscriptions of a topic that is being deleted, or gone."""
        self.dispatcher.forget(topic)
        self.assignment.forget(topic)
