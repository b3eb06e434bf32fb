"""A broker's membership: its lease, its key, and whether it may still act on them.

The lease's age counts from *sending* the newest renewal that was answered, so this broker stops no later than
coordination ends the lease. Where coordination grants a longer lease than `lease_s`, the grant counts. Renewal is a
task of the broker's own event loop: a loop that is blocked for a whole lease answers no request either, so losing the
lease is then right. In a cluster that would be costly: `aside` renews while the loop is blocked, for up to STALL_LEASES
leases; a broker that hangs for good still loses its segments.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from seaweedq import levels
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.keys import BROKERS
from seaweedq.coordination.records.cluster import BrokerRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.renewals import Renewals
from seaweedq.coordination.thread_loop import AsideWork, StartAside
from seaweedq.errors import CoordinationUnavailable

logger = logging.getLogger(__name__)
STALL_LEASES = 6
JOINS = 4  # attempts to write the key; a rise of the cluster's level makes two fail


def _nobody_asks() -> None:
    pass


def _nothing_is_proven(broker: str, record: BrokerRecord) -> tuple[str, ...]:
    return ()


async def _everybody_may() -> Sequence[Compare]:
    return ()


@dataclass(frozen=True)
class BrokerIdentity:
    """The id of one life of a broker, `{name}.{boot id}`, and what others need to know of it."""

    id: str
    name: str
    url: str
    zone: str
    spared: bool = False
    peer_url: str = ""

    @staticmethod
    def of(ids: Ids, name: str, url: str, zone: str = "", spared: bool = False, peer_url: str = "") -> "BrokerIdentity":
        """Returns an identity with a new id."""
        return BrokerIdentity(f"{name}.{ids.nonce()[:16]}", name, url, zone, spared, peer_url)


class Membership:
    """One life of a broker, from `start` to `stop` or to the end of its lease; the next life is a new object.

    `broker` is the broker's id; `lease` is 0 before the start. `on_lost` is called once, when it is certain
    that the lease has ended without `stop`. `was_revoked`: it ended while this broker kept it, so others ended it.
    `prove` makes the record's proofs; what they cover never changes.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        identity: BrokerIdentity,
        lease_s: float,
        on_lost: Callable[[], None] = _nobody_asks,
        *,
        aside: StartAside | None = None,
        prove: Callable[[str, BrokerRecord], tuple[str, ...]] = _nothing_is_proven,
    ) -> None:
        self.broker = identity.id
        self.lease = 0
        self.was_revoked = False
        self._coordination = coordination
        self._clock = clock
        record = BrokerRecord(
            url=identity.url,
            name=identity.name,
            started_us=clock.now_us(),
            zone=identity.zone,
            starting=True,
            lowest=levels.LOWEST,
            highest=levels.HIGHEST,
            version=levels.VERSION,
            spared=identity.spared,
            peer_url=identity.peer_url,
        )
        self._held = Versioned.new(record).replace(proofs=prove(identity.id, record))
        self._saying = asyncio.Lock()
        self._lease_s = lease_s
        self._on_lost = on_lost
        self._valid_until_s = 0.0
        self._ended = False
        self._renewals = Renewals(clock, self.broker, lease_s, self.renew)
        self._renewal: asyncio.Task[None] | None = None
        self._start_aside = aside
        self._aside: AsideWork | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._home_seen_s = 0.0

    async def start(self, admit: Callable[[], Awaitable[Sequence[Compare]]] = _everybody_may) -> None:
        """Takes a lease, begins to renew, and writes `brokers/{broker}`. The key is written under the comparisons of
        `admit`, which is asked again where one does not hold. Raises CoordinationUnavailable, and as `admit` does."""
        await self._take_lease()
        self._begin_renewing()  # before the key is written, which may take as long as a lease
        self._held = self._held.stored(await self._write_key(admit))

    async def _take_lease(self) -> None:
        sent_s, asked_s = self._clock.monotonic_s(), self._lease_s
        grant = await self._coordination.leases.grant(asked_s)
        self.lease, self._lease_s = grant.lease, grant.ttl_s
        self._held = self._held.replace(lease_s=grant.ttl_s)
        if grant.ttl_s > asked_s:
            logger.warning(
                "coordination grants leases of %g s, not of %g s (lease_s): a death is noticed that much later",
                grant.ttl_s,
                asked_s,
            )
        self._valid_until_s = sent_s + self._lease_s

    def _begin_renewing(self) -> None:
        self._renewals = Renewals(self._clock, self.broker, self._lease_s, self.renew)
        if self._start_aside is not None:
            self._home, self._home_seen_s = asyncio.get_running_loop(), self._clock.monotonic_s()
            self._aside = self._start_aside(self._keep_renewing, "lease-renewal")
        else:
            self._renewal = asyncio.create_task(self._keep_renewing(), name="lease-renewal")

    async def _write_key(self, admit: Callable[[], Awaitable[Sequence[Compare]]]) -> int:
        key = BROKERS.key(self.broker)
        put = Put(key, BROKERS.encode(self._held), self.lease)
        for _ in range(JOINS):
            revision = await self._coordination.commit([Compare(key, 0), *await admit()], [put])
            if revision is not None:
                return revision
        raise CoordinationUnavailable(f"the lease of {self.broker} expired before its membership key was written")

    async def stop(self) -> None:
        """Ends the lease, and with it all keys tied to it; if coordination does not answer, the lease ends by
        itself."""
        self._end()
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        if self._aside is not None:
            await self._aside.stop()
            self._end()  # a renewal may have been answered meanwhile
        if self.lease:
            with suppress(CoordinationUnavailable):
                await self._coordination.leases.revoke(self.lease)

    async def drain(self) -> bool:
        """Announces that this broker is about to leave, so that it gets no new segments. False: the lease has ended."""
        return await self._say(draining=True)

    async def open(self) -> bool:
        """Announces that this broker serves, so that it may get segments. False: the lease has ended."""
        return await self._say(starting=False)

    async def end_exemption(self) -> bool:
        """Announces that this broker may be suspected again. False: the lease has ended."""
        return await self._say(spared=False)

    async def _say(self, **changes: bool) -> bool:
        key = BROKERS.key(self.broker)
        async with self._saying:  # each change compares the revision that the one before has made
            there = await self._coordination.get(key)
            if there is None:
                return False
            self._held = self._held.stored(there.revision)  # of a change whose answer was lost, which nobody else makes
            held = self._held.replace(**changes)
            put = Put(key, BROKERS.encode(held), self.lease)
            revision = await self._coordination.commit([self.compare()], [put])
            if revision is not None:
                self._held = held.stored(revision)
            return revision is not None

    @property
    def is_exempt(self) -> bool:
        """Tells whether this broker says that it is not to be suspected."""
        return self._held.record.spared

    @property
    def missed_renewals(self) -> int:
        """How many renewals got no answer in this life."""
        return self._renewals.missed

    def valid(self) -> bool:
        """Tells whether the lease is younger than `lease_s`: only then may the broker acknowledge, and serve its
        tails."""
        return not self._ended and self._clock.monotonic_s() < self._valid_until_s

    def end(self) -> None:
        """Notes that the lease has ended, as somebody else has seen: this broker's key has gone, or its journal was
        fenced. From here nothing is valid any more."""
        self.was_revoked = self.was_revoked or self.valid()
        self._end()

    def compare(self) -> Compare:
        """Returns a comparison that holds as long as this broker lives, for every transaction that names it as an
        owner."""
        return Compare(BROKERS.key(self.broker), self._held.revision)

    async def renew(self) -> bool:
        """Renews once. False: the lease has ended, for good. Raises CoordinationUnavailable, which decides nothing."""
        sent_s = self._clock.monotonic_s()
        alive = await self._coordination.leases.renew(self.lease)
        if not alive and not self._ended:
            self.end()
        elif not self._ended:  # renewals overlap: an older one may be answered after a newer one
            self._valid_until_s = max(self._valid_until_s, sent_s + self._lease_s)
        return alive

    async def _keep_renewing(self) -> None:
        try:
            await self._renewals.run(self._home_stands_still)
        except Exception:
            logger.exception("cannot renew the lease of %s any more", self.broker)
            self._end()
        self._tell_lost()

    def _home_stands_still(self) -> bool:
        """Tells whether the broker's event loop has not run for STALL_LEASES leases; always False on that loop
        itself."""
        if self._home is None:
            return False
        with suppress(RuntimeError):  # it was closed, and is not seen again
            self._home.call_soon_threadsafe(self._see_home)
        still = self._clock.monotonic_s() - self._home_seen_s > STALL_LEASES * self._lease_s
        if still:
            logger.error("the event loop of %s does not run; its lease is no longer renewed", self.broker)
        return still

    def _see_home(self) -> None:
        self._home_seen_s = self._clock.monotonic_s()

    def _tell_lost(self) -> None:
        if self._home is None:
            self._on_lost()
        else:
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._on_lost)

    def _end(self) -> None:
        self._ended = True
        self._valid_until_s = 0.0
