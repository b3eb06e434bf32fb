"""Finds the broker that answers a request about a segment: its owner, or any broker once the segment is sealed."""

from dataclasses import dataclass

from seaweedq.broker.read.request_search import Asked, Search, SearchContext
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import Unavailable

PAUSE_S = 0.1
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class OwnerFinder:
    """Begins the searches for owners of segments."""

    context: SearchContext
    ownership: Ownership

    def search(self, topic: Topic, segment: int, asked: Asked) -> Search:
        """Begins the search for the broker that answers a request about a segment; it raises SegmentNotFound."""
        return Search(self.context, topic, asked, _Owner(self, topic, segment))


@dataclass(frozen=True, slots=True)
class _Owner:
    finder: OwnerFinder
    topic: Topic
    segment: int

    @property
    def patience_s(self) -> float:
        return PATIENCE_S

    @property
    def moved(self) -> Signal | None:
        return self.topic.moved

    async def locate(self) -> str | None:
        view = self.finder.context.view
        if self.finder.ownership.has(self.topic, self.segment):
            return view.membership.broker
        return view.catalog.segment(self.topic, self.segment).record.owner

    def failed(self, error: Unavailable) -> float | None:
        return PAUSE_S
