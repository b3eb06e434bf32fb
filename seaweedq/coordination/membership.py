"""A broker's membership: its lease, its key, and whether it may still act on them.

The lease's age counts from *sending* the newest renewal that was answered, so this broker stops no later than
coordination ends the lease. If coordination grants a longer lease than `lease_s`, the grant counts. Renewal is a
task of the broker's own event loop: a loop that is blocked for a whole lease answers no request either, so losing the
lease is then right. In a cluster that would be costly: a thread renews while the loop is blocked, for up to
STALL_LEASES leases; a broker that hangs for good still loses its segments.

One renewal is sent each `period_s`, whether the earlier ones have been answered or not. A coordination that answers
late, but within the lease, then ends no lease: waiting for an answer before the next try adds up, and giving up after a
part of the lease gives up answers that would come. An answer that takes as long as the lease counts for nothing, so no
more renewals are under way than fit into a lease. A renewal that is missed (no answer, or a refusal that decides
nothing) is counted and logged: the first one at once, then one line each LOG_S.

The end of a broker is certain once its process was seen to end, or its folder's lock is held by another. Then nothing
has to wait for a lease that it might still believe in, and `end_life` also removes its revocation
(broker/cluster/revoker). Order: 1. The lease is revoked, and from here nobody writes a revocation, since that compares
the broker's key. 2. The revocation goes. A crash between them leaves it, and the leader removes it later.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from seaweedq import levels
from seaweedq.checks import reach
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put, read_all
from seaweedq.coordination.keys import BROKERS
from seaweedq.coordination.records import BrokerRecord, JournalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable, NotReady

PERIOD_S = 1.0
SENDINGS = 5  # at least, for each lease
LOG_S = 10.0
logger = logging.getLogger(__name__)
POLL_S = 0.002
AGAIN_S = 0.2  # before an announcement whose outcome is unknown is made again
STALL_LEASES = 6
JOINS = 4  # attempts to write the key; a rise of the cluster's level makes two fail


class Renewals:
    """The renewals of one lease of `lease_s`, whose holder logs call `holder`. `renew` sends one, and tells whether the
    lease lives. `missed` counts those without an answer."""

    def __init__(self, clock: Clock, holder: str, lease_s: float, renew: Callable[[], Awaitable[bool]]) -> None:
        self.missed = 0
        self._clock = clock
        self._holder = holder
        self._lease_s = lease_s
        self._renew = renew
        self._logged_s: float | None = None
        self._logged = 0

    @property
    def period_s(self) -> float:
        """The time from one sending to the next."""
        return min(PERIOD_S, self._lease_s / SENDINGS)

    async def run(self, hold: Callable[[], bool]) -> None:
        """Sends until an answer says that the lease has ended, or `hold` tells to send nothing any more. Raises any
        error of a renewal but CoordinationUnavailable."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        under_way: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                await asyncio.wait([ended], timeout=self.period_s)
                if ended.done() or hold():
                    break
                task = asyncio.create_task(self._send(ended), name="renewal")
                under_way[task] = None
                task.add_done_callback(under_way.pop)
            if ended.done():
                ended.result()
        finally:
            left = list(under_way)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def _send(self, ended: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._lease_s):
                alive = await self._renew()
        except (CoordinationUnavailable, TimeoutError) as error:
            self._miss(str(error) or f"no answer within {self._lease_s:g} s")
        except Exception as error:
            fail(ended, error)
        else:
            if not alive:
                resolve(ended, None)

    def _miss(self, why: str) -> None:
        self.missed += 1
        now_s = self._clock.monotonic_s()
        if self._logged_s is not None and now_s - self._logged_s < LOG_S:
            return
        count, self._logged, self._logged_s = self.missed - self._logged, self.missed, now_s
        logger.warning("%d renewals of the lease of broker %s failed; the last error: %s", count, self._holder, why)


class BackgroundWork(Protocol):
    """Work that was started beside the caller's loop."""

    async def stop(self) -> None:
        """Cancels the work, and waits until it has ended."""


StartBackground: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]], str], BackgroundWork]


class LeaseThread:
    """Runs `work` once, from now on. The work runs in another thread, and must not wait for the caller's loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work(), name=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Cancels the work, and waits until its thread has ended."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        while self._thread.is_alive():  # in no pool of threads: if all of those hang, a lease is given back
            await asyncio.sleep(POLL_S)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        finally:
            self._loop.close()


def _nobody_asks() -> None:
    pass


def _nothing_is_proven(broker: str, record: BrokerRecord) -> tuple[str, ...]:
    return ()


async def _everybody_may() -> Sequence[Compare]:
    return ()


@dataclass(frozen=True)
class BrokerIdentity:
    """The id of one life of a broker, `{name}.{boot id}`, and the facts that others need to know."""

    id: str
    name: str
    url: str
    zone: str
    suspicion_exempt: bool = False
    peer_url: str = ""
    grpc_url: str = ""

    @staticmethod
    def new(
        ids: Ids,
        name: str,
        url: str,
        zone: str = "",
        suspicion_exempt: bool = False,
        peer_url: str = "",
        grpc_url: str = "",
    ) -> "BrokerIdentity":
        """Returns an identity with a new id."""
        return BrokerIdentity(f"{name}.{ids.nonce()[:16]}", name, url, zone, suspicion_exempt, peer_url, grpc_url)


class Membership:
    """One life of a broker, from `start` to `stop` or to the end of its lease; the next life is a new object.

    `broker` is the broker's id; `lease` is 0 before the start. `on_lost` is called once, when it is certain
    that the lease has ended without `stop`. `was_revoked`: it ended while this broker kept it, so others ended it.
    `prove` makes the record's proofs; the members that they cover never change.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        identity: BrokerIdentity,
        lease_s: float,
        on_lost: Callable[[], None] = _nobody_asks,
        *,
        background: StartBackground | None = None,
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
            suspicion_exempt=identity.suspicion_exempt,
            peer_url=identity.peer_url,
            grpc_url=identity.grpc_url,
        )
        self._held = Versioned.new(record).replace(proofs=prove(identity.id, record))
        self._unannounced: dict[str, bool] = {}  # members of the record that may not be stored yet
        self._announcing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._lease_s = lease_s
        self._on_lost = on_lost
        self._valid_until_s = 0.0
        self._ended = False
        self._renewals = Renewals(clock, self.broker, lease_s, self.renew)
        self._renewal: asyncio.Task[None] | None = None
        self._start_background = background
        self._background: BackgroundWork | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._home_seen_s = 0.0

    async def start(self, admit: Callable[[], Awaitable[Sequence[Compare]]] = _everybody_may) -> None:
        """Takes a lease, begins to renew, and writes `brokers/{broker}`. The key is written under the comparisons of
        `admit`, which is asked again if one does not hold. Raises CoordinationUnavailable, and as `admit` does."""
        sent_s, asked_s = self._clock.monotonic_s(), self._lease_s
        grant = await self._coordination.leases.grant(asked_s)
        self.lease, self._lease_s = grant.lease, grant.ttl_s
        self._held = self._held.replace(lease_s=grant.ttl_s)
        if grant.ttl_s > asked_s:
            logger.warning(
                "coordination grants leases of %g s instead of lease_s=%g s, so if this broker dies, the other "
                "brokers notice that later",
                grant.ttl_s,
                asked_s,
            )
        self._valid_until_s = sent_s + self._lease_s
        self._begin_renewing()  # before the key is written, which may take as long as a lease
        key = BROKERS.key(self.broker)
        put = Put(key, BROKERS.encode(self._held), self.lease)
        for _ in range(JOINS):
            revision = await self._coordination.commit([Compare(key, 0), *await admit()], [put])
            if revision is not None:
                self._held = self._held.stored(revision)
                return
        raise CoordinationUnavailable(
            f"the lease of broker {self.broker} expired before the broker could join the cluster"
        )

    def _begin_renewing(self) -> None:
        self._renewals = Renewals(self._clock, self.broker, self._lease_s, self.renew)
        if self._start_background is not None:
            self._home, self._home_seen_s = asyncio.get_running_loop(), self._clock.monotonic_s()
            self._background = self._start_background(self._keep_renewing, "lease-renewal")
        else:
            self._renewal = asyncio.create_task(self._keep_renewing(), name="lease-renewal")

    async def stop(self) -> None:
        """Ends the lease, and with it all keys tied to it; if coordination does not answer, the lease ends by
        itself."""
        self._end()
        if tasks := [task for task in (self._renewal, self._announcing) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._background is not None:
            await self._background.stop()
            self._end()  # a renewal may have been answered meanwhile
        if self.lease:
            with suppress(CoordinationUnavailable):
                await self._coordination.leases.revoke(self.lease)

    async def drain(self) -> bool:
        """Announces that this broker is about to leave, so that it gets no new segments. False: the lease has ended."""
        return await self._announce(draining=True)

    async def open(self) -> bool:
        """Announces that this broker serves, so that it may get segments. False: the lease has ended."""
        return await self._announce(starting=False)

    async def end_exemption(self) -> bool:
        """Announces that this broker may be suspected again. False: the lease has ended."""
        return await self._announce(suspicion_exempt=False)

    async def _announce(self, **changes: bool) -> bool:
        self._unannounced |= changes
        try:
            return await self._write_record()
        except BaseException:
            if self._announcing is None or self._announcing.done():
                self._announcing = asyncio.create_task(self._announce_again(), name="announcing")
            raise

    async def _announce_again(self) -> None:
        """Tries until the outcome is known. Behind a write without an answer, which may also land late, `compare` does
        not hold, and each transaction of this broker would fail though the lease lives."""
        while self._unannounced and not self._ended:
            await asyncio.sleep(AGAIN_S)
            with suppress(CoordinationUnavailable):
                await self._write_record()

    async def _write_record(self) -> bool:
        key = BROKERS.key(self.broker)
        async with self._writing:  # each change compares the revision that the one before has made
            while there := await self._coordination.get(key):
                self._held = self._held.stored(there.revision)  # of a write without an answer: nobody else writes it
                changes = self._unannounced.copy()
                held = self._held.replace(**changes)
                revision = await self._coordination.commit(
                    [self.compare()], [Put(key, BROKERS.encode(held), self.lease)]
                )
                if revision is not None:
                    self._held = held.stored(revision)
                    self._unannounced = {
                        name: value for name, value in self._unannounced.items() if name not in changes
                    }
                    return True
        return False

    @property
    def is_exempt(self) -> bool:
        """Tells whether this broker says that it is not to be suspected."""
        return self._held.record.suspicion_exempt

    @property
    def missed_renewals(self) -> int:
        """How many renewals got no answer in this life."""
        return self._renewals.missed

    def valid(self) -> bool:
        """Tells whether the lease is younger than `lease_s`: only then may the broker acknowledge, and serve its
        tails."""
        return not self._ended and self._clock.monotonic_s() < self._valid_until_s

    async def check_lives(self) -> None:
        """Raises NotReady if the lease has ended, though this broker may not have noticed; CoordinationUnavailable."""
        if await self._coordination.get(BROKERS.key(self.broker)) is None:
            raise NotReady("this broker's lease has ended; try again")

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
            logger.exception("can no longer renew the lease of broker %s", self.broker)
            self._end()
        if self._home is None:
            self._on_lost()
        else:
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._on_lost)

    def _home_stands_still(self) -> bool:
        """Tells whether the broker's event loop has not run for STALL_LEASES leases; always False on that loop
        itself."""
        if self._home is None:
            return False
        with suppress(RuntimeError):  # it was closed, and is not seen again
            self._home.call_soon_threadsafe(self._see_home)
        still = self._clock.monotonic_s() - self._home_seen_s > STALL_LEASES * self._lease_s
        if still:
            logger.error(
                "the event loop of broker %s is blocked, so the broker's lease is no longer renewed", self.broker
            )
        return still

    def _see_home(self) -> None:
        self._home_seen_s = self._clock.monotonic_s()

    def _end(self) -> None:
        self._ended = True
        self._valid_until_s = 0.0


async def journals_of(coordination: Coordination, place: str) -> dict[str, Versioned[JournalRecord]]:
    """Returns the journals of the brokers that have lived in the home folder `place`, of those that still have one."""
    entries, _ = await read_all(coordination, keys.JOURNALS.prefix())
    found = {str(keys.JOURNALS.parse(entry.key)[0]): keys.JOURNALS.read(entry) for entry in entries}
    return {id: one for id, one in found.items() if isinstance(one, Versioned) and one.record.place == place}


async def end_life(coordination: Coordination, broker: str) -> bool:
    """Ends the lease of a broker that is dead for certain. Tells whether it had one. Raises CoordinationUnavailable."""
    there = await coordination.get(keys.BROKERS.key(broker))
    if there:
        reach("takeover.revoke")
        await coordination.leases.revoke(there.lease)
    await coordination.commit([], [Delete(keys.REVOCATIONS.key(broker))])
    return there is not None
