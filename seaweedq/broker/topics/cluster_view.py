"""The cluster as one of its members sees it. Views may be behind: transactions compare what matters."""

from dataclasses import dataclass

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.roster import Roster


@dataclass(frozen=True)
class ClusterView:
    """The topics and segments, the living brokers, this broker's own membership, and the time."""

    catalog: Catalog
    roster: Roster
    membership: Membership
    clock: Clock
