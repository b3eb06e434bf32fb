"""The member stage of a broker: what all its rooms are built on, once it knows its cluster.

The stage before is its process (broker/process). A room's class takes the context and the rooms that it stands on, and
builds all that is inside by itself.
"""

from dataclasses import dataclass
from functools import cached_property

from seaweedq.broker.access.callers import Callers
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.readiness import Readiness
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.journal.interface import Journals
from seaweedq.settings import Settings
from seaweedq.storage.counting import Counted


@dataclass(frozen=True)
class Context:
    """All that the rooms of a member of the cluster share. `cluster` is the cluster's id.

    `level`, `roster`, `catalog` and `callers` are watched views, so possibly behind; transactions compare what matters.
    `entries` writes files in the member's name, `journals` makes its journal and opens those of the dead.
    """

    settings: Settings
    store: Counted
    coordination: Coordination
    clock: Clock
    ids: Ids
    peers: Peers
    url: str
    readiness: Readiness
    level: ClusterLevel
    roster: Roster
    callers: Callers
    catalog: Catalog
    tombstones: Tombstones
    quota: ClusterQuota
    budget: Budget
    cluster: str
    membership: Membership
    election: Election
    entries: EntryWriter
    journals: Journals

    @cached_property
    def view(self) -> ClusterView:
        """The topics, the brokers, the membership and the time, for those that need no more."""
        return ClusterView(self.catalog, self.roster, self.membership, self.clock)

    @property
    def broker(self) -> str:
        """The id of this life in the cluster."""
        return self.membership.broker

    def written_level(self) -> int:
        """Returns the level at which forms are written now."""
        return self.level.written
