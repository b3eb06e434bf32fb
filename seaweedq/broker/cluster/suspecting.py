"""Suspecting: finds brokers that seem dead, ends their leases, and tells others that this one lives.

A process counts the leases that others ended while it lived, over all lives of its broker. The next lives say so, and
are not suspected for a while: if others cannot reach this broker although it lives (a wrong URL, a rule of a firewall,
a sidecar that is not up), it would else begin a new life again and again.
"""

import asyncio
import logging
from math import inf

from seaweedq.broker.cluster.heartbeats import Prober, Responder
from seaweedq.broker.cluster.revoker import Revoker, SuspicionReports
from seaweedq.broker.cluster.suspicion_rules import EXEMPT_S
from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.clock import Clock
from seaweedq.coordination.membership import Membership
from seaweedq.errors import CoordinationUnavailable

AGAIN_S = 1.0
logger = logging.getLogger(__name__)


class OwnRevocations:
    """How often it happened (`count`), and how long lives are exempt from suspicion."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._last_s = -inf

    def add(self) -> str:
        """Counts a lease that was ended while this broker lived. Returns that as the end of a line of the log."""
        self.count += 1
        self._last_s = self._clock.monotonic_s()
        return f"; others did that while it lived, so it is not suspected for {EXEMPT_S:g} s"

    @property
    def exempt_s(self) -> float:
        """Returns how long this broker is still exempt from suspicion; 0 if it is not."""
        return max(0.0, self._last_s + EXEMPT_S - self._clock.monotonic_s())

    async def end_exemption(self, membership: Membership) -> None:
        """Lets a life be suspected again, once its exemption is over. It never ends, as no task of a life."""
        while left_s := self.exempt_s:
            await asyncio.sleep(left_s)
        said = False
        while not said:
            try:
                said = await membership.end_exemption()
            except CoordinationUnavailable as error:
                logger.info("this broker does not say yet that it may be suspected: %s", error)
            await asyncio.sleep(AGAIN_S)
        await asyncio.Event().wait()


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
        """Begins to ask the others, and to answer them."""
        revision = await self.reports.load()
        named = {
            "suspicions and revocations": self.reports.follow(revision),
            "heartbeats": self.prober.run(),
            "revoker": self.revoker.run(),
        }
        if self._membership.is_exempt:
            named["end of the exemption"] = self._own.end_exemption(self._membership)
        return named

    def wake(self) -> None:
        """Tells the prober and the revoker that the roster has changed."""
        self.prober.wake()
        self.revoker.wake()

    async def hand_over(self) -> None:
        """Tells all who ask that this broker stops."""
        self.responder.leave()

    def begin_stop(self) -> None:
        """Tells all who ask, and who wait, that this broker stops."""
        self.responder.leave()
