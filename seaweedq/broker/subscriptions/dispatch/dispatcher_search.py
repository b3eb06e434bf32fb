"""Finds the broker that answers a request about a subscription: its dispatcher, or the one that would become it."""

from dataclasses import dataclass

from seaweedq.broker.read.request_search import Asked, Search, SearchContext
from seaweedq.broker.subscriptions.cursors.assignment import Assignment
from seaweedq.broker.subscriptions.dispatch.dispatcher import Dispatcher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import NotOwner, NotReady, Unavailable

PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class DispatcherFinder:
    """Begins the searches for dispatchers of subscriptions."""

    context: SearchContext
    assignment: Assignment
    dispatcher: Dispatcher

    def search(self, topic: Topic, name: str, asked: Asked) -> Search:
        """Begins the search for the broker that answers a request about a subscription."""
        return Search(self.context, topic, asked, _Dispatcher(self, topic, name))

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
    pause_s: float = PAUSE_S

    @property
    def patience_s(self) -> float:  # a dispatcher that cannot read a segment insists for `timeout_s`
        return self.finder.context.timeout_s + MARGIN_S

    @property
    def moved(self) -> Signal | None:
        return None

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
