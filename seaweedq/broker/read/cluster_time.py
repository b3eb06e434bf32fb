"""The time of the cluster, by which messages expire, and from which their lifetimes count. No clock decides it alone.

An expired message counts as acked, for good. So a clock that is days ahead would lose messages where it judges, and one
that is days behind where it takes them: others would find them over at once. Both go by the middle one of all brokers'
clocks; if their number is even, messages expire by the earlier one in the middle, and live from the later one on, so
that a wrong clock makes them late, and loses none.

A dispatcher whose clock says that a message has expired asks the other brokers for their time. A living broker that
does not answer counts as one that nothing has expired for. One that an earlier version runs tells no time, and does not
count.

A publish asks nobody. With each greeting (broker/cluster/suspecting), once a minute, the others tell their
times, which go on by this broker's monotonic clock; two of them become the bounds of this broker's own. A told time
stays if its broker has gone, until others tell theirs. Only while others are there, and none has told its time yet,
a message that has a lifetime waits for an answer.
"""

import asyncio
from math import inf

from seaweedq.broker.log.reader import Pieces, expired, unexpired
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import Heartbeat, HeartbeatCall
from seaweedq.clock import Clock
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SeaweedqError, Unavailable

FRESH_S = 30.0  # after which the others are asked again
ANSWER_S = 1.0
AGAIN_S = 0.2  # after which they are asked again if none has told its time yet
FAR_US = 2**62


class ClusterTime:
    """The time of the cluster, as the broker `me` knows it."""

    def __init__(self, clock: Clock, roster: Roster, me: str, peers: Peers) -> None:
        self._clock = clock
        self._roster = roster
        self._me = me
        self._peers = peers
        self._ahead_us: dict[str, int | None] = {}  # of the monotonic clock, by broker; None: it tells no time
        self._told_us: dict[str, int | None] = {}  # in the same way, rather later than earlier
        self._low_us, self._high_us = -FAR_US, FAR_US  # in the same way: they bound this broker's clock
        self._is_told = False
        self._asked_s = -inf
        self._asking = asyncio.Lock()

    async def now_us(self) -> int:
        """Returns the time by which messages expire, for which others are asked if that was long ago."""
        await self._ask_all(FRESH_S)
        return self._middle_us()

    async def unexpired(self, pieces: Pieces) -> Pieces:
        """Returns the rows whose time is not over; others are asked if it is by this broker's clock."""
        now_us = self._clock.now_us()
        if any(expired(rows, now_us) is not None for _, rows in pieces):
            now_us = await self.now_us()
        return [fresh for first, rows in pieces for fresh in unexpired(first, rows, now_us)]

    def lifetime_from_us(self, own_us: int) -> int | None:
        """Returns the time from which a message lives that comes at `own_us` by this broker's clock; None if that
        has to be learned."""
        if not self._is_told:
            return own_us if len(self._roster.brokers) < 2 or self._has_nobody_to_ask() else None
        ahead_us = own_us - int(self._clock.monotonic_s() * 1e6)
        if ahead_us < self._low_us:
            return own_us + self._low_us - ahead_us
        return own_us if ahead_us <= self._high_us else own_us + self._high_us - ahead_us

    async def learn(self) -> int:
        """Returns the time from which a message lives that comes now, for which others are asked if none has told
        its time yet. Raises Unavailable if still none has."""
        if (known_us := self.lifetime_from_us(self._clock.now_us())) is not None:
            return known_us
        await self._ask_all(AGAIN_S)
        if (known_us := self.lifetime_from_us(self._clock.now_us())) is not None:
            return known_us
        raise Unavailable(
            f"expires_in_s cannot be converted to a time yet: none of the {len(self._others())} "
            "other brokers has reported its clock since this broker started"
        )

    def record(self, broker: str, now_us: int, since_s: float) -> None:
        """Records the time that a broker told at `since_s` of the monotonic clock, or later; 0: it tells none."""
        self._told_us[broker] = now_us - int(since_s * 1e6) if now_us else None
        others = self._others()
        self._told_us = {one: ahead for one, ahead in self._told_us.items() if one in others}
        told_us = sorted(ahead for ahead in self._told_us.values() if ahead is not None)
        if told_us:
            at = (len(told_us) + 1) // 2  # of the middle one, the later of two, among these and this broker's clock
            self._low_us, self._high_us = told_us[at - 1], (*told_us, FAR_US)[at]
            self._is_told = True

    async def _ask_all(self, fresh_s: float) -> None:
        async with self._asking:  # callers that come meanwhile use the answers
            if self._clock.monotonic_s() - self._asked_s > fresh_s:
                self._ahead_us = dict(await asyncio.gather(*(self._ask(*one) for one in self._others().items())))
                self._asked_s = self._clock.monotonic_s()

    def _has_nobody_to_ask(self) -> bool:
        """Tells whether no other broker has finished its start, but for those that are known to tell no time."""
        others = (one for one in self._roster.brokers.items() if one[0] != self._me)
        return all(known.record.starting or broker in self._told_us for broker, known in others)

    def _others(self) -> dict[str, str]:
        """Returns the addresses of the other brokers."""
        return {broker: known.record.url for broker, known in self._roster.brokers.items() if broker != self._me}

    async def _ask(self, broker: str, url: str) -> tuple[str, int | None]:
        since_s = self._clock.monotonic_s()
        try:
            found = await self._peers.call(url, "greet", HeartbeatCall(), Heartbeat, ANSWER_S)
        except SeaweedqError:
            return broker, self._ahead_us.get(broker, -self._monotonic_us())
        self.record(broker, 0 if found.broker == self._me else found.now_us, since_s)  # its address may be mine by now
        return broker, found.now_us - self._monotonic_us() if found.now_us else None

    def _middle_us(self) -> int:
        monotonic_us = self._monotonic_us()
        unknown_us = -monotonic_us
        told = [self._ahead_us.get(broker, unknown_us) for broker in self._others()]
        times_us = sorted([self._clock.now_us(), *(monotonic_us + ahead for ahead in told if ahead is not None)])
        return times_us[(len(times_us) - 1) // 2]

    def _monotonic_us(self) -> int:
        return int(self._clock.monotonic_s() * 1e6)
