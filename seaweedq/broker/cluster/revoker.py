"""Ends the leases of brokers that enough others suspect, before their time; and the view of reports and revocations.

Order of writes for a broker X: 1. One transaction puts the record `revocations/X`. It compares the keys of X, of this
broker and of the leader, and the reports, so all of that holds then. 2. X's lease is revoked, that very one to which
its key was tied; X's key goes with it. Now ranges are recovered, and given to others, at once: X is fenced
(broker/recovery), whether it lives or not. 3. Once X's key has been away for the time of X's lease, by the clock of
the leader of that time, the leader removes the record. Only then may another broker dispatch in X's place
(broker/subscriptions/assignment): X's answers rest on its lease, which X keeps in sight from the sending of its last
renewal on, and that was sent before 2.

A crash between 1 and 2 leaves a revocation, and a broker that lives. The revocation stays until that broker is gone:
the end of its lease may be under way, and come late. A crash behind 2 leaves 3 to the next leader, which waits anew. A
revocation is missing only if the end is certain: the parent of X, or the next owner of X's folder, removes it
(coordination/membership).
"""

import asyncio
import logging
from collections.abc import Callable

from seaweedq.broker.cluster.suspicion_rules import Verdict, may_be_suspected, revoker_of, suspects
from seaweedq.broker.context import ClusterView
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election, leader_of
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Put
from seaweedq.coordination.records import RevocationRecord
from seaweedq.coordination.roster import NEVER
from seaweedq.coordination.versioned import Versioned
from seaweedq.coordination.view import View
from seaweedq.errors import Fenced, SeaweedqError

ROUND_S = 0.5  # between two rounds while a broker is suspected or revoked
logger = logging.getLogger(__name__)


class SuspicionReports:
    """The reports on each broker (`by_broker`), by reporter, with their revisions; and the revocations (`revoked`).
    `changed` is called after every change."""

    def __init__(self, coordination: Coordination, changed: Callable[[], None]) -> None:
        self.by_broker: dict[str, dict[str, int]] = {}
        self.revoked: dict[str, Versioned[RevocationRecord]] = {}
        self._changed = changed
        view = View(coordination, [keys.SUSPICIONS.prefix(), keys.REVOCATIONS.prefix()], self._apply)
        self.load = view.load
        self.follow = view.follow

    def _apply(self, change: Change) -> None:
        if keys.SUSPICIONS.matches(change.key):
            broker, reporter = keys.SUSPICIONS.parse(change.key)
            reports = self.by_broker.setdefault(broker, {})
            reports.pop(reporter, None)
            if change.value is not None:
                reports[reporter] = change.revision
            if not reports:
                del self.by_broker[broker]
        elif keys.REVOCATIONS.matches(change.key):
            (broker,) = keys.REVOCATIONS.parse(change.key)
            self.revoked.pop(broker, None)
            if change.value is not None:
                found = keys.REVOCATIONS.read(Entry(change.key, change.value, change.revision))
                if isinstance(found, Versioned):  # one that cannot be read stays for a newer leader
                    self.revoked[broker] = found
        self._changed()


class Revoker:
    """Ends leases while this broker leads, and that of the leader if this is the first reporter. `revocations`
    counts them."""

    def __init__(
        self,
        view: ClusterView,
        coordination: Coordination,
        election: Election,
        reports: SuspicionReports,
    ) -> None:
        self.revocations = 0
        self._roster = view.roster
        self._membership = view.membership
        self._clock = view.clock
        self._coordination = coordination
        self._election = election
        self._reports = reports
        self._wake = asyncio.Event()
        self._gone_since_s: dict[str, float] = {}  # of revoked brokers

    def wake(self) -> None:
        """Begins the next round at once: the reports, the revocations or the brokers have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Does a round after each change, and often while a broker is suspected or revoked; for ever."""
        while True:
            self._wake.clear()
            try:
                await self.round()
            except (Fenced, SeaweedqError) as error:
                logger.warning("could not check brokers that are suspected to be dead: %s", error)
            is_idle = not (self._reports.by_broker or self._reports.revoked)
            try:
                async with asyncio.timeout(None if is_idle else ROUND_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def round(self) -> None:
        """Ends the leases that this broker is to end now, and removes the revocations whose time is over."""
        await self._end_leases()
        await self._remove_revocations()

    async def _end_leases(self) -> None:
        brokers = {broker: known.record for broker, known in self._roster.brokers.items()}
        if verdicts := suspects(brokers, self._roster.living, self._reports.by_broker):
            leads = await self._coordination.get(keys.LEADER.key())
            for verdict in verdicts:
                if revoker_of(verdict, leader_of(leads) if leads else None) == self._membership.broker:
                    await self._revoke(verdict, Compare(keys.LEADER.key(), leads.revision if leads else 0))

    async def _revoke(self, verdict: Verdict, same_leader: Compare) -> None:
        broker = verdict.broker
        there = await self._coordination.get(keys.BROKERS.key(broker))
        found = keys.BROKERS.read(there) if there else None
        if there is None or not isinstance(found, Versioned) or not may_be_suspected(found.record):
            return
        revocation = RevocationRecord(self._membership.broker, verdict.reporters, found.record.lease_s)
        put = Put(keys.REVOCATIONS.key(broker), keys.REVOCATIONS.encode(Versioned.new(revocation)))
        reports = self._reports.by_broker.get(broker, {})
        suspicions = [(keys.SUSPICIONS.key(broker, one), reports.get(one, NEVER)) for one in verdict.reporters]
        compares = [Compare(there.key, there.revision), self._membership.compare(), same_leader]
        compares += [Compare(*one) for one in suspicions]  # they hold as long as the reports stand
        if await self._coordination.commit(compares, [put]) is None:
            return  # the next round sees why
        reach("suspicion.marked")
        named = " and ".join(verdict.reporters)
        logger.warning(
            "revoking the lease of broker %s, because that broker refuses connections from %s", broker, named
        )
        await self._coordination.leases.revoke(there.lease)
        self.revocations += 1
        reach("suspicion.revoked")

    async def _remove_revocations(self) -> None:
        for broker in list(self._reports.revoked):
            if broker not in self._gone_since_s and not self._roster.alive(broker) and await self._roster.gone(broker):
                self._gone_since_s[broker] = self._clock.monotonic_s()  # the key was there, and never comes back
        self._gone_since_s = {one: at_s for one, at_s in self._gone_since_s.items() if one in self._reports.revoked}
        now_s = self._clock.monotonic_s()
        for broker, since_s in list(self._gone_since_s.items()):
            found = self._reports.revoked.get(broker)
            if found and self._election.is_leader and now_s - since_s >= found.record.lease_s:
                await self._remove_revocation(broker, found.revision)

    async def _remove_revocation(self, broker: str, revision: int) -> None:
        key = keys.REVOCATIONS.key(broker)
        compares = [self._election.leader_compare(), Compare(keys.BROKERS.key(broker), 0), Compare(key, revision)]
        if await self._coordination.commit(compares, [Delete(key)]) is not None:
            logger.info(
                "other brokers may now take over the subscriptions of broker %s, whose lease was "
                "revoked because that broker seemed to be dead",
                broker,
            )
