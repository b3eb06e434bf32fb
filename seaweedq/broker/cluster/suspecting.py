"""Suspecting: finds brokers that seem dead, ends their leases, and tells others that this one lives."""

from seaweedq.broker.cluster.heartbeats import Prober, Responder
from seaweedq.broker.cluster.own_revocations import OwnRevocations
from seaweedq.broker.cluster.revoker import Revoker
from seaweedq.broker.cluster.suspicion_reports import SuspicionReports
from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks


class Suspecting(Service):
    """Asks the others (`prober`), answers them (`responder`), and ends leases (`revoker`)."""

    def __init__(self, context: Context, own: OwnRevocations, reading: Reading) -> None:
        coordination = context.coordination
        self._membership = context.membership
        self._own = own
        self.responder = Responder(context.broker, context.clock)
        self.reports = SuspicionReports(coordination, lambda: self.revoker.wake())
        self.revoker = Revoker(context.view, coordination, context.election, self.reports)
        self.prober = Prober(
            coordination,
            context.membership,
            context.roster,
            self.reports,
            context.peers,
            context.clock,
            reading.readables.time.hear,
        )

    async def run(self) -> Tasks:
        """Begins to look after the others, and to be looked after."""
        revision = await self.reports.load()
        named = {
            "marks of suspicion": self.reports.follow(revision),
            "greetings": self.prober.run(),
            "suspicions": self.revoker.run(),
        }
        if self._membership.is_exempt:
            named["end of the exemption"] = self._own.end_exemption(self._membership)
        return named

    def wake(self) -> None:
        """Looks at the roster, which has changed."""
        self.prober.wake()
        self.revoker.wake()

    async def hand_over(self) -> None:
        """Tells all who ask that this broker stops."""
        self.responder.leave()

    def begin_stop(self) -> None:
        """Tells all who ask, and who wait, that this broker stops."""
        self.responder.leave()
