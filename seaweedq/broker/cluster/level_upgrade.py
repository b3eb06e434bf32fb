"""The upgrade of the cluster's level, on request, and the guard that keeps out brokers that cannot read the level.

Order of writes for an upgrade to N, by any broker: 0. Refuse it, with nothing written, unless each living broker, and
the broker of each journal that is to be recovered, reads N. 1. Create the store's object `_levels/N`. 2. One
transaction compares the cluster's record, the requesting broker's and those of the living brokers, and writes `level`
N: from here no broker that does not read N joins, since each compares the cluster's record in the transaction that
writes its own. 3. Read the brokers again and end the leases of those that do not read N, which had read the record
before 2 and joined behind it; wait a lease, in which they notice that; until there are none. It waits also if it finds
none, since another broker may have ended them. 4. A transaction writes `written` N: brokers write forms of N.

A crash behind 1 leaves a store that says more than is true, which costs nothing. One behind 2 leaves a cluster that
*rises*: the leader goes on with 3, as does a repeated request. Each step may be done again, and by two at once: the
writes of 2 and 4 depend on the record that they compare.

Each broker also has a guard: if a broker that does not read the level ever joins without that comparison, the guard
ends its lease as its record appears. Such a broker is starting then, and never gets ready: for that it compares its own
record. While the level rises the guard leaves those that are ready to 3, which waits behind the end of their leases.
"""

import asyncio
import logging
from collections.abc import Sequence

from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.cluster_level import ClusterLevel, Reads, read_cluster, reads_of
from seaweedq.coordination.interface import MAX_OPERATIONS, Compare, Coordination, Entry, Put, read_all
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import ClusterRecord, RevocationRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import LevelConflict, Unavailable
from seaweedq.storage.identity import mark_level
from seaweedq.storage.interface import ObjectStore

ATTEMPTS = 5
COMPARED = MAX_OPERATIONS - 3  # brokers of which 2 compares the records; those beyond are seen by 3 alone
NAMED = 20  # brokers in an error's text
RETRY_S = 1.0
LONGEST_LEASE_S = 60.0  # of the setting lease_s
_Living = tuple[Entry, Reads | None]
logger = logging.getLogger(__name__)


class LevelUpgrade:
    """Raises the cluster's level. `lease_s` is how long a broker may take to notice the end of its lease."""

    def __init__(
        self,
        coordination: Coordination,
        store: ObjectStore,
        level: ClusterLevel,
        membership: Membership,
        lease_s: float,
    ) -> None:
        self._coordination = coordination
        self._store = store
        self._level = level
        self._membership = membership
        self._lease_s = lease_s

    async def upgrade(self, to: int | None) -> ClusterRecord:
        """Raises the level to `to`, or to the newest that a living broker reads; ends an upgrade that was broken off.

        Returns the record as it is then. Raises LevelConflict if `to` is lower than the level, or not read by all;
        Unavailable.
        """
        newest = [reads.highest for _, reads in await self._living() if reads]
        await self._begin(to or max(newest, default=self._level.level))
        record = await self._finish()
        await self._level.load()
        return record

    async def finish(self) -> None:
        """Ends an upgrade that was broken off."""
        if self._level.written < self._level.level:
            await self._finish()

    async def log_possible(self) -> None:
        """Logs that the level could rise, or which brokers keep it from that."""
        level, possible, newest = self._level.level, self._level.possible, self._level.newest
        if possible > level:
            logger.info(
                "all brokers can read format level %d; to upgrade the cluster from format level %d, "
                "run `seaweedq cluster level`",
                possible,
                level,
            )
        elif newest > level:
            too_old = ", ".join(self._level.too_old_for(newest)[:NAMED])
            logger.info(
                "the cluster stays at format level %d, because these brokers cannot read a higher level: %s",
                level,
                too_old,
            )

    async def _begin(self, to: int) -> None:
        """Does 0 to 2, unless the level is `to` already."""
        for _ in range(ATTEMPTS):
            known = await self._read()
            if known.record.level == to:
                return
            living = await self._living()
            await self._check(known.record.level, to, living)
            await mark_level(self._store, to)
            reach("level.marked")
            if await self._announce(known, to, [entry for entry, _ in living]):
                logger.warning("upgrading the cluster from format level %d to format level %d", known.record.level, to)
                reach("level.announced")
                return
        raise Unavailable(
            "the cluster's format level was not raised, because brokers kept joining or leaving; try again"
        )

    async def _check(self, level: int, to: int, living: Sequence[_Living]) -> None:
        """Raises LevelConflict if the level may not become `to`."""
        if to < level:
            raise LevelConflict(
                f"the cluster already has format level {level}; the level cannot be lowered", level=level, to=to
            )
        too_old = {str(keys.BROKERS.parse(entry.key)[0]) for entry, reads in living if not (reads and reads.reads(to))}
        entries, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        for entry in entries:
            reads = reads_of(entry.value)
            if not (reads and (reads.recovered or reads.reads(to))):
                too_old.add(keys.JOURNALS.parse(entry.key)[0])
        if too_old:
            named = sorted(too_old)
            shown = ", ".join(named[:NAMED]) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
            raise LevelConflict(
                f"the cluster cannot be upgraded to format level {to}, because these brokers (running, or dead with a "
                f"journal that is not recovered yet) cannot read that level: {shown}",
                level=level,
                to=to,
                too_old=named,
            )

    async def _announce(self, known: Versioned[ClusterRecord], to: int, living: Sequence[Entry]) -> bool:
        own = self._membership.compare()
        others = [Compare(entry.key, entry.revision) for entry in living if entry.key != own.key]
        put = Put(keys.CLUSTER.key(), keys.CLUSTER.encode(known.replace(level=to)))
        compares = [Compare(put.key, known.revision), own, *others[:COMPARED]]
        return await self._coordination.commit(compares, [put]) is not None

    async def _finish(self) -> ClusterRecord:
        """Ends the leases of brokers that do not read the level, and writes it then: steps 3 and 4."""
        waited = False
        while (known := await self._read()).record.written < known.record.level:
            if await end_leases(self._coordination, known.record.level):
                waited = False
            elif waited:
                reach("level.cleared")
                level = known.record.level
                put = Put(keys.CLUSTER.key(), keys.CLUSTER.encode(known.replace(written=level)))
                if await self._coordination.commit([Compare(put.key, known.revision)], [put]) is not None:
                    logger.warning(
                        "the cluster now has format level %d, and its brokers write the formats of that level", level
                    )
                    reach("level.written")
                continue
            await asyncio.sleep(self._lease_s)
            waited = True
        return known.record

    async def _read(self) -> Versioned[ClusterRecord]:
        there = await self._coordination.get(keys.CLUSTER.key())
        assert there is not None, "a broker has joined although the cluster has no record"
        return read_cluster(there)

    async def _living(self) -> list[_Living]:
        entries, _ = await read_all(self._coordination, keys.BROKERS.prefix())
        return [(entry, reads_of(entry.value)) for entry in entries]


class JoinGuard:
    """Ends the leases of brokers that have joined although they do not read the level; while it rises, of those that
    are starting."""

    def __init__(self, coordination: Coordination, level: ClusterLevel, roster: Roster) -> None:
        self._coordination = coordination
        self._level = level
        self._roster = roster
        self._found = asyncio.Event()

    def check(self) -> None:
        """Checks the brokers that are known, after these or the level have changed."""
        records = [known.record for known in self._roster.readable.values()]
        if any(one.highest < self._level.level and (one.starting or self._is_settled) for one in records):
            self._found.set()

    async def run(self) -> None:
        """Ends such leases, for ever."""
        self.check()
        while True:
            await self._found.wait()
            self._found.clear()
            try:
                await end_leases(self._coordination, self._level.level, ready_too=self._is_settled)
            except Unavailable as error:
                logger.warning("brokers that cannot read the cluster's format level still have leases: %s", error)
                await asyncio.sleep(RETRY_S)
                self.check()

    @property
    def _is_settled(self) -> bool:
        return self._level.written == self._level.level


async def end_leases(coordination: Coordination, level: int, ready_too: bool = True) -> bool:
    """Ends the leases of all brokers that do not read a level, or of those that are starting. Returns whether there
    were any."""
    entries, _ = await read_all(coordination, keys.BROKERS.prefix())
    known = [(entry, reads) for entry in entries if (reads := reads_of(entry.value))]
    too_old = [entry for entry, reads in known if not reads.reads(level) and (ready_too or reads.starting)]
    for entry in too_old:
        (broker,) = keys.BROKERS.parse(entry.key)
        logger.warning(
            "revoking the lease of broker %s, because that broker cannot read the cluster's format level %d",
            broker,
            level,
        )
        if await _revoke(coordination, entry):  # else it has changed: the next check ends its lease
            await coordination.leases.revoke(entry.lease)
    return bool(too_old)


async def _revoke(coordination: Coordination, entry: Entry) -> bool:
    """Has nobody dispatch in place of a broker as long as it may believe in its lease, as with any that is ended early
    (broker/cluster/revoker). False: its record has changed."""
    (broker,) = keys.BROKERS.parse(entry.key)
    revocation = keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("", (), LONGEST_LEASE_S)))
    put = Put(keys.REVOCATIONS.key(broker), revocation)
    return await coordination.commit([Compare(entry.key, entry.revision)], [put]) is not None
