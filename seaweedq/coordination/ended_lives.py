"""Ends the leases of brokers that are dead for certain: their process was seen to end, or their folder's lock is held.

The end is certain, so nothing has to wait for a lease that such a broker might still believe in: the mark of an end on
suspicion (broker/cluster/revoker) is removed. Order: 1. The lease is revoked, and from here nobody puts a mark, since
that compares the broker's key. 2. The mark goes. A crash between them leaves a mark, which the leader removes later.
"""

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Delete
from seaweedq.coordination.records.cluster import JournalRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.transactions import read_all
from seaweedq.failpoints import reach


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
