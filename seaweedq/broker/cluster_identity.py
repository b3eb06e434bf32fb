"""Which store, coordination and secret belong together: looked at before this broker is seen by others.

The store names the cluster, coordination names the store. So neither a second coordination over one store, nor a second
store under one coordination can be begun by a setting that is wrong on one broker: both would have two truths about
the same segments. Secrets are compared by asking, since nothing of one is to be kept anywhere.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from seaweedq.broker.rpc.client import Peers
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import ClusterRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, Unavailable, UnfitStore
from seaweedq.storage.identity import cluster_identity, known_identity
from seaweedq.storage.interface import ObjectStore

ASK_S = 2.0


async def cluster_of(coordination: Coordination, store: ObjectStore, ids: Ids, clock: Clock, named: str) -> str:
    """The cluster's id; both learn it where they are new. `named`: the store and coordination, for people. Raises
    UnfitStore where they are not of each other."""
    known = await _record(coordination, Versioned.new(ClusterRecord(ids.nonce())))
    record = known.record
    if record.store and await known_identity(store) is None:
        raise UnfitStore(
            f"{named}: coordination has a cluster already, {record.cluster}, and this is not its store, which would "
            "have a _cluster.json; start with the store that all brokers have, or with coordination that is new"
        )
    identity = await cluster_identity(store, record.cluster, clock, ids.nonce())
    if identity.cluster != record.cluster:
        raise UnfitStore(
            f"{named}: the store belongs to cluster {identity.cluster}, this coordination to {record.cluster}; "
            "start with what the store was made with, or with a fresh store"
        )
    if not record.store:
        record = (await _record(coordination, known.replace(store=identity.store))).record
    if record.store != identity.store:
        raise UnfitStore(f"{named}: coordination knows another store of cluster {record.cluster}, made at another time")
    return record.cluster


async def _record(coordination: Coordination, wanted: Versioned[ClusterRecord]) -> Versioned[ClusterRecord]:
    """Returns the cluster's record, after trying to write it in place of the one of its revision."""
    key = keys.CLUSTER.key()
    there = await coordination.get(key)
    if (there.revision if there else 0) == wanted.revision:
        await coordination.commit([Compare(key, wanted.revision)], [Put(key, keys.CLUSTER.encode(wanted))])
        there = await coordination.get(key)
    assert there is not None
    return keys.CLUSTER.read(there)


async def check_secret(peers: Peers, urls: Iterable[str]) -> None:
    """Ask the other brokers; of those that do not answer nothing is known. Raises InvalidRequest where one refuses."""

    async def ask(url: str) -> None:
        with suppress(Unavailable):
            if await peers.refused(url, ASK_S):
                raise InvalidRequest(
                    f"the broker at {url} has another cluster_secret than this one; give all brokers the same",
                    field="cluster_secret",
                )

    await asyncio.gather(*map(ask, urls))
