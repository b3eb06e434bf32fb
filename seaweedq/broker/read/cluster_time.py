"""The time at which messages expire: one that half of the living brokers have reached, at least.

What has expired counts as acked, for good, and no wall clock may decide that alone: one that is days ahead would lose
messages. So a dispatcher whose clock says that a message has expired asks the other brokers for their time, and goes by
the middle one of all; of an even number, by the earlier of the two in the middle. A living broker that does not answer
counts as one that nothing has expired for. One that an earlier version runs tells no time, and does not count.
"""

import asyncio

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import GreetCall, Greeting
from seaweedq.clock import Clock
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SeaweedqError

FRESH_S = 30.0  # after which the others are asked again
ANSWER_S = 1.0


class ClusterTime:
    """The time of the cluster, as the broker `me` knows it."""

    def __init__(self, clock: Clock, roster: Roster, me: str, peers: Peers) -> None:
        self._clock = clock
        self._roster = roster
        self._me = me
        self._peers = peers
        self._ahead_us: dict[str, int | None] = {}  # of the monotonic clock, by broker; None: it tells no time
        self._asked_s: float | None = None
        self._asking = asyncio.Lock()

    def own_us(self) -> int:
        """Returns this broker's own time."""
        return self._clock.now_us()

    async def now_us(self) -> int:
        """Returns the time, for which others are asked where that was long ago."""
        async with self._asking:  # who comes meanwhile uses the answers
            if self._asked_s is None or self._clock.monotonic_s() - self._asked_s > FRESH_S:
                self._ahead_us = dict(await asyncio.gather(*(self._ask(*one) for one in self._others().items())))
                self._asked_s = self._clock.monotonic_s()
        return self._middle_us()

    def _others(self) -> dict[str, str]:
        """Returns the addresses of the other brokers."""
        return {broker: known.record.url for broker, known in self._roster.brokers.items() if broker != self._me}

    async def _ask(self, broker: str, url: str) -> tuple[str, int | None]:
        try:
            found = await self._peers.call(url, "greet", GreetCall(), Greeting, ANSWER_S)
        except SeaweedqError:
            return broker, self._ahead_us.get(broker, -self._monotonic_us())
        return broker, found.now_us - self._monotonic_us() if found.now_us else None

    def _middle_us(self) -> int:
        monotonic_us = self._monotonic_us()
        unknown_us = -monotonic_us
        told = [self._ahead_us.get(broker, unknown_us) for broker in self._others()]
        times_us = sorted([self.own_us(), *(monotonic_us + ahead for ahead in told if ahead is not None)])
        return times_us[(len(times_us) - 1) // 2]

    def _monotonic_us(self) -> int:
        return int(self._clock.monotonic_s() * 1e6)
