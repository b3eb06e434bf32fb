"""Joining: checks that store, coordination and secret belong together, then follows the views of the cluster.

The store names the cluster, coordination names the store. So neither a second coordination over one store, nor a second
store under one coordination can be begun by a setting that is wrong on one broker: both would have two truths about
the same segments. Secrets are compared by the proofs in brokers' records, and by asking.

Order of writes if both are new: 1. the store's object of the level (storage/identity), 2. coordination's key,
which has the level, generation 1 and its nonce from the beginning, 3. the store's identity, with the id in the key,
4. the store's object of the generation (storage/generations), 5. the store's own id into the key. A start goes on from
the place at which an earlier one, or another at the same time, was cut off. Behind 5 each start compares the store's
newest generation with the key's: another one is that of another history, in which this broker has no part.
"""

import asyncio
import logging
from contextlib import suppress

from seaweedq import levels
from seaweedq.broker.cluster.level_upgrade import JoinGuard
from seaweedq.broker.cluster.snapshots import SnapshotNumbers
from seaweedq.broker.context import Context
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.service import Service, Tasks
from seaweedq.checks import reach
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.cluster_level import check_level, read_cluster
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import ClusterRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, Unavailable, UnfitStore
from seaweedq.storage.generations import Generation, check_generation, create_generation
from seaweedq.storage.identity import cluster_identity, known_identity, mark_level, marked_level
from seaweedq.storage.interface import ObjectStore

ASK_S = 2.0
REREAD_S, LEASE_MARGIN_S = 0.5, 1.0  # of brokers whose records prove nothing
NAMED = 10  # brokers in an error's text
logger = logging.getLogger(__name__)


async def cluster_of(
    coordination: Coordination, store: ObjectStore, ids: Ids, clock: Clock, named: str
) -> ClusterRecord:
    """Returns the cluster's record; both learn the cluster's id and generation if they are new. `named`: the store and
    coordination, for people.

    Raises UnfitStore if they are not of each other, LevelMismatch if this version does not read their level.
    """
    known = await _first_record(coordination, store, ids)
    record = known.record
    if record.store and await known_identity(store) is None:
        raise UnfitStore(
            f"{named}: coordination belongs to cluster {record.cluster}, but this store has no "
            "_cluster.json, so the store does not belong to that cluster; start the broker with the "
            "store that all other brokers use, or with coordination that no cluster has used"
        )
    identity = await cluster_identity(store, record.cluster, clock, ids.nonce())
    if identity.cluster != record.cluster:
        raise UnfitStore(
            f"{named}: the store belongs to cluster {identity.cluster}, but coordination belongs "
            f"to cluster {record.cluster}; start the broker with the coordination that the store was created "
            "with, or with a new store"
        )
    generation = Generation(record.generation, record.nonce)
    if not record.store:
        reach("join.identity")
        await create_generation(store, generation)
        reach("join.generation")
        record = (await _record(coordination, known.replace(store=identity.store))).record
    if record.store != identity.store:
        raise UnfitStore(
            f"{named}: coordination belongs to cluster {record.cluster}, but was set up with a "
            "different store; start the broker with the store that all other brokers use"
        )
    await check_generation(store, generation, named)
    return record


async def _first_record(coordination: Coordination, store: ObjectStore, ids: Ids) -> Versioned[ClusterRecord]:
    """Returns the cluster's record. If there is none, or it names no store yet, it gets the level of the store: nobody
    has joined such a cluster."""
    there = await coordination.get(keys.CLUSTER.key())
    known = read_cluster(there) if there else Versioned.new(ClusterRecord.new(ids.nonce(), levels.HIGHEST, ids.nonce()))
    if known.record.store:
        await _compare_level(store, known.record.level)
        return known
    new_store = await known_identity(store) is None
    level = known.record.level if new_store else await marked_level(store)
    if there and level <= known.record.level:
        return known
    check_level(level)
    if new_store:
        await mark_level(store, level)
    return await _record(coordination, known.replace(level=level, written=level))


async def _compare_level(store: ObjectStore, level: int) -> None:
    """Logs if the store names a higher level: an upgrade was broken off early, or coordination is of an older day."""
    if level < levels.HIGHEST and (marked := await marked_level(store)) > level:
        logger.warning(
            "the store has format level %d, but coordination has format level %d: an upgrade was "
            "interrupted, or coordination was restored to an earlier state. Run `seaweedq "
            "cluster level %d` to complete the upgrade, and do not start a broker that cannot "
            "read that level",
            marked,
            level,
            marked,
        )


async def _record(coordination: Coordination, wanted: Versioned[ClusterRecord]) -> Versioned[ClusterRecord]:
    """Returns the cluster's record, after trying to write it in place of the one of its revision."""
    key = keys.CLUSTER.key()
    await coordination.commit([Compare(key, wanted.revision)], [Put(key, keys.CLUSTER.encode(wanted))])
    there = await coordination.get(key)
    assert there is not None
    return read_cluster(there)


async def check_secret(peers: Peers, roster: Roster) -> None:
    """Asks the other brokers; of those that do not answer nothing is known. Raises InvalidRequest if one refuses, and
    if the record of none proves that it has a secret of this broker.

    Records of brokers that were killed, and had another secret, go with their leases: this waits for them to go.
    """

    async def ask(url: str) -> None:
        with suppress(Unavailable):
            if await peers.refused(url, ASK_S):
                raise _another_secret(f"the broker at {url} has a different cluster_secret than this broker")

    await _wait_for_strange(roster)
    await asyncio.gather(*map(ask, sorted({known.record.url for known in roster.brokers.values()})))


async def _wait_for_strange(roster: Roster) -> None:
    left_s = LEASE_MARGIN_S + max((known.record.lease_s for known in roster.strange.values()), default=0.0)
    while roster.strange and not roster.brokers:
        if left_s <= 0:
            named = ", ".join(sorted(roster.strange)[:NAMED])
            raise _another_secret(f"the other brokers ({named}) have a different cluster_secret than this broker")
        left_s -= REREAD_S
        await asyncio.sleep(REREAD_S)
        await roster.load()


def _another_secret(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what}; give all brokers the same cluster_secret", field="cluster_secret")


class Following(Service):
    """Follows level, brokers, topics and principals: a member does from before its recovery on, until it leaves. The
    `guard` keeps out brokers that do not read the level."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.guard = JoinGuard(context.coordination, context.level, context.roster)
        self._snapshots = SnapshotNumbers(context)

    async def run(self) -> Tasks:
        """Loads the views, and follows them."""
        level, roster, catalog = self._context.level, self._context.roster, self._context.catalog
        callers = self._context.callers
        revisions = [await view.load() for view in (level, roster, catalog, callers.view, self._snapshots)]
        return {
            "cluster level": level.follow(revisions[0]),
            "guard of the level": self.guard.run(),
            "roster": roster.follow(revisions[1]),
            "catalog": catalog.follow(revisions[2]),
            "principals and tokens": callers.view.follow(revisions[3]),
            "numbers of snapshots": self._snapshots.follow(revisions[4]),
            "rights of waiting requests": callers.run(self._context.membership.valid),
        }
