"""Reading: the services that read segments, whoever owns them, and let other brokers read."""

from seaweedq.broker.context import Context
from seaweedq.broker.load import Load
from seaweedq.broker.log.flusher import Log
from seaweedq.broker.read.file_pages import FilePages
from seaweedq.broker.read.positions import LocalPositions, TopicPositions
from seaweedq.broker.read.readable_segments import ReadableSegments
from seaweedq.broker.read.request_search import OwnerFinder, SearchContext
from seaweedq.broker.read.segment_reads import Fetcher, ReadServer
from seaweedq.broker.service import Service
from seaweedq.broker.topics.ownership import Ownership


class Reading(Service):
    """Where the segments of a topic begin and end, and their rows, by segment, for requests and for other brokers."""

    def __init__(self, context: Context, ownership: Ownership, log: Log, load: Load) -> None:
        view, peers, reader = context.view, context.peers, log.reader
        timeout_s, stopping = context.settings.publish_timeout_s, context.readiness.is_stopping
        self.search = SearchContext(view, timeout_s, stopping)
        self.local_positions = LocalPositions(view, ownership, reader, log.flusher, load.loads, timeout_s)
        self.positions = TopicPositions(view, ownership, peers, self.local_positions, timeout_s)
        self.readables = ReadableSegments(view, ownership, reader, peers)
        self.server = ReadServer(view.catalog, ownership, reader, view.clock, context.readiness.check_ready)
        self.fetcher = Fetcher(ownership, reader, view.clock, stopping)
        self.finder = OwnerFinder(self.search, ownership)
        self.files = FilePages(view.catalog, self.positions, context.store)

    async def stop(self) -> None:
        """Ends all long polls at other brokers."""
        self.readables.close()
