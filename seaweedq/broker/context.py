"""The context on which all rooms of a broker are built, once it is a member of its cluster; and whether it may answer.

The stage before has the choices of its process (broker/broker). A room's class takes the context and the rooms that it
stands on, and builds all that is inside by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from seaweedq.broker.access.callers import Callers
from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.backups import Backups
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.cluster_level import ClusterLevel
from seaweedq.coordination.election import Election
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.seen_revisions import SeenRevisions
from seaweedq.errors import NotReady, Restored
from seaweedq.journal.interface import Journals
from seaweedq.settings import Settings
from seaweedq.storage.generations import Generations
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.interface import ObjectStore
from seaweedq.traces import Traces


@dataclass(frozen=True)
class ClusterView:
    """The topics and segments, the living brokers, this broker's own membership, the time, and its spans if any."""

    catalog: Catalog
    roster: Roster
    membership: Membership
    clock: Clock
    traces: Traces | None = None


def _never() -> bool:
    return False


class Readiness:
    """The state of one broker's life, for requests to ask. `has_lease` says whether its lease is valid now: the
    membership's answer, once there is one. `waits` is the error of a broker that waits for a rebuild of
    coordination."""

    def __init__(self, has_lease: Callable[[], bool] = _never) -> None:
        self.ready = False
        self.leaving = False  # new clients go elsewhere, and an answer ends its connection
        self.draining = False
        self.stopping = False
        self.waits: Restored | None = None
        self.has_lease = has_lease

    def is_stopping(self) -> bool:
        """Returns whether the broker stops, so that no request may wait any longer."""
        return self.stopping

    @property
    def can_take_work(self) -> bool:
        """Whether new clients may come."""
        return self.ready and not (self.leaving or self.draining or self.stopping) and self.has_lease()

    def check_takes_work(self) -> None:
        """Raises NotReady, Restored unless new clients may come."""
        self.check_ready()
        if self.draining or self.leaving:
            raise NotReady("the broker is draining" if self.draining else "the broker is about to stop")

    def check_joined(self) -> None:
        """Raises NotReady, Restored unless other brokers can talk to this one."""
        if self.waits and not self.stopping:
            raise self.waits
        if not self.ready or (self.stopping and not self.draining):
            raise NotReady("the broker is stopping" if self.stopping else "the broker is starting")

    def check_ready(self) -> None:
        """Raises NotReady while the broker starts, stops or has no lease, Restored while it waits for a rebuild. One
        that drains serves to the end."""
        if not self.ready or self.stopping:  # seldom: most requests make no further call
            self.check_joined()
        if not self.has_lease():
            raise NotReady("this broker's lease has expired")


@dataclass(frozen=True)
class Context:
    """All that the rooms of a member of the cluster share. `cluster` is the cluster's id.

    `level`, `roster`, `catalog` and `callers` are watched views, so possibly behind; transactions compare the records
    that matter. `files` is the store for readers of segments, through the cache if there is one. `entries` writes files
    in the member's name, `journals` makes its journal and opens those of the dead. `generations` is asked before each
    pass of deletions, `backups` has coordination in the store, and `traces` makes
    spans if the settings ask for them.
    """

    settings: Settings
    store: InstrumentedStore
    coordination: SeenRevisions
    clock: Clock
    ids: Ids
    peers: Peers
    url: str
    readiness: Readiness
    level: ClusterLevel
    roster: Roster
    callers: Callers
    catalog: Catalog
    quota: ClusterQuota
    budget: Budget
    cluster: str
    membership: Membership
    election: Election
    entries: EntryWriter
    journals: Journals
    generations: Generations
    backups: Backups
    files: ObjectStore
    traces: Traces | None

    @cached_property
    def view(self) -> ClusterView:
        """The topics, the brokers, the membership and the time, for those that need no more."""
        return ClusterView(self.catalog, self.roster, self.membership, self.clock, self.traces)

    @cached_property
    def changes(self) -> AdminChanges:
        """The way of administrative changes into the store."""
        return AdminChanges(self.coordination, self.backups)

    @property
    def broker(self) -> str:
        """The id of this life in the cluster."""
        return self.membership.broker
