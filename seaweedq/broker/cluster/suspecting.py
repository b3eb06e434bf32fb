"""Suspecting: finds brokers that seem dead, and has their leases ended; tells others that this one lives.

Each broker asks every other one (`Prober`), and answers those that ask (`Responder`). One task for each other broker
follows the rules (broker/cluster/suspicion_rules): it asks the broker as soon as its record is seen, has it hold a
request, and asks again when that ends. A report is a key tied to this broker's lease, which is written under the
comparison that both brokers live. It is withdrawn when the other one answers, or does anything but refuse, and when it
has gone. The times in answers go to `on_time`.

A request that is held ends with the process, which the asking broker notices at once. An early answer says that this
broker stops: it may refuse connections before its record says that it is gone, and must not be suspected for that.

A process counts the leases that others ended while it lived, over all lives of its broker. The next lives say so, and
are not suspected for a while: if others cannot reach this broker although it lives (a wrong URL, a rule of a firewall,
a sidecar that is not up), it would else begin a new life again and again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from math import inf

from seaweedq.broker.cluster.revoker import Revoker, SuspicionReports
from seaweedq.broker.cluster.suspicion_rules import (
    EXEMPT_S,
    PeerHealth,
    ProbeOutcome,
    may_be_suspected,
    reporters_needed,
)
from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.rpc.client import Peers, is_refused
from seaweedq.broker.rpc.messages import Heartbeat, HeartbeatCall
from seaweedq.broker.service import Service, Tasks
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import SuspicionRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable, SeaweedqError, Unavailable

ANSWER_S = 5.0
AGAIN_S = 1.0
logger = logging.getLogger(__name__)


class Responder:
    """Answers for the broker `me`."""

    def __init__(self, me: str, clock: Clock) -> None:
        self._me = me
        self._clock = clock
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Answers all heartbeats, also those that are held: this broker stops."""
        self._leaving.set()

    async def heartbeat(self, hold_s: float) -> Heartbeat:
        """Returns the id of this broker, and the time, after `hold_s`, or as soon as this broker stops."""
        if hold_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await self._leaving.wait()
        return Heartbeat(self._me, self._leaving.is_set(), self._clock.now_us())


class Prober:
    """Asks all other brokers, and reports those that refuse connections. `suspicions` counts its reports."""

    def __init__(
        self,
        coordination: Coordination,
        membership: Membership,
        roster: Roster,
        reports: SuspicionReports,
        peers: Peers,
        clock: Clock,
        on_time: Callable[[str, int, float], None],
    ) -> None:
        self.suspicions = 0
        self._coordination = coordination
        self._membership = membership
        self._roster = roster
        self._reports = reports
        self._peers = peers
        self._clock = clock
        self._on_time = on_time
        self._wake = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reported: dict[str, bool] = {}  # by broker: whether the report was written for certain

    def wake(self) -> None:
        """Begins the next round: the roster has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Follows the brokers of the roster, for ever."""
        try:
            while True:
                self._wake.clear()
                for broker, known in self._roster.brokers.items():
                    if broker != self._membership.broker and known.record.lease_s and broker not in self._tasks:
                        work = self._follow(broker, known.record.url)
                        self._tasks[broker] = asyncio.create_task(work, name=f"heartbeats of {broker}")
                for broker in [broker for broker in self._tasks if broker not in self._roster.brokers]:
                    task = self._tasks.pop(broker)
                    task.cancel()
                    await asyncio.wait([task])
                    await self._withdraw(broker)
                await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, broker: str, url: str) -> None:
        health = PeerHealth()
        while True:
            await asyncio.sleep(health.pause_s)
            try:
                health = health.after(await self._ask(broker, url, health.holds_s))
                await (self._report(broker, url) if health.is_suspect else self._withdraw(broker))
            except CoordinationUnavailable as error:
                logger.info("could not report whether broker %s is alive: %s", broker, error)
            except Exception:  # a defect must not end the others
                logger.exception("could not check whether broker %s is alive", broker)
                await asyncio.sleep(AGAIN_S)

    async def _ask(self, broker: str, url: str, hold_s: float) -> ProbeOutcome:
        since_s = self._clock.monotonic_s() + hold_s
        try:
            found = await self._peers.call(url, "greet", HeartbeatCall(hold_s), Heartbeat, hold_s + ANSWER_S)
        except Unavailable as error:
            return ProbeOutcome.REFUSED if is_refused(error) else ProbeOutcome.FAILED
        except SeaweedqError:
            return ProbeOutcome.FAILED
        if found.broker != broker:  # another life, or another broker: nothing is known of this one
            return ProbeOutcome.FAILED
        if found.leaving:
            return ProbeOutcome.LEAVES
        self._on_time(broker, found.now_us, since_s)
        return ProbeOutcome.ANSWERED

    async def _report(self, broker: str, url: str) -> None:
        known = self._roster.brokers.get(broker)
        if known is None or self._reported.get(broker):
            return
        is_reported_enough = len(self._reports.by_broker.get(broker, ())) >= reporters_needed(self._roster.living)
        if is_reported_enough or not may_be_suspected(known.record):
            return
        me = self._membership
        put = Put(self._key(broker), keys.SUSPICIONS.encode(Versioned.new(SuspicionRecord(url))), me.lease)
        self._reported[broker] = False  # also if no answer comes, it may be there
        if await self._coordination.commit([me.compare(), self._roster.compare(broker)], [put]) is not None:
            self._reported[broker] = True
            self.suspicions += 1
            logger.warning("broker %s refuses connections at %s, and is suspected to be dead", broker, url)

    async def _withdraw(self, broker: str) -> None:
        """Removes this broker's report, if there may be one, however long that takes."""
        me = self._membership.broker
        while broker in self._reported or me in self._reports.by_broker.get(broker, ()):
            try:
                await self._coordination.commit([], [Delete(self._key(broker))])
                self._reported.pop(broker, None)
                return
            except CoordinationUnavailable as error:
                logger.info("the report that broker %s seems to be dead could not be withdrawn yet: %s", broker, error)
                await asyncio.sleep(AGAIN_S)

    def _key(self, broker: str) -> str:
        return keys.SUSPICIONS.key(broker, self._membership.broker)


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
        return (
            "; other brokers revoked the lease while this broker was running, so for "
            f"{EXEMPT_S:g} s this broker cannot be suspected again to be dead"
        )

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
                logger.info(
                    "from now on, other brokers can again suspect that this broker is dead, but this broker could not "
                    "record this change in coordination yet (%s); retrying",
                    error,
                )
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
            reading.readables.time.record,
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
