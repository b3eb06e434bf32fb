"""Load: what the segments of this broker carry, what those of all brokers do, and the history that the leader keeps."""

from seaweedq.broker.context import Context
from seaweedq.broker.load.histories import Histories, HistoryRecorder, HotKeys
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.load.reports import Reports
from seaweedq.broker.service import Service, Tasks


class Load(Service):
    """The meters of this broker (`loads`), the `reports` of all of them, and the histories. `hot` returns the keys that
    the autoscaler found hot."""

    def __init__(self, context: Context, hot: HotKeys) -> None:
        self.loads = Loads(context.catalog, context.broker, context.clock)
        self.reports = Reports(context.catalog, context.roster, context.peers, context.broker, self.loads)
        self.recorder = HistoryRecorder(context.catalog, self.reports, context.election, hot, context.clock)
        self.histories = Histories(context.view, context.election, self.recorder, context.peers)

    async def run(self) -> Tasks:
        """Reads the meters."""
        return {"loads": self.loads.run()}
