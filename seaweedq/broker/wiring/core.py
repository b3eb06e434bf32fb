"""Building what a broker has from the beginning: views of the cluster, and memory."""

from collections.abc import Callable

from seaweedq.access.accounts import Accounts
from seaweedq.broker.access.admin_token import AdminToken
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.audit.audit import Audit, mode_of
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.broker.rpc.peer_gate import PeerGate
from seaweedq.broker.rpc.peer_trust import Addresses, PeerTrust, secrets_of
from seaweedq.broker.services import (
    Core,
    Environment,
)
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.cluster_quota import ClusterQuota
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.coordination.roster import Roster


def build_core(
    environment: Environment,
    topic_closed: Callable[[Topic], None],
    roster_changed: Callable[[], None],
    level_changed: Callable[[], None],
) -> Core:
    """Builds what exists from the beginning. The listeners are told of topics that are being deleted or gone, of
    brokers and journals that come and go, and of the cluster's level."""
    settings, coordination = environment.settings, environment.coordination
    budget = Budget(settings.memory_budget_bytes)
    cache = GroupCache(budget, settings.cache_bytes)
    clock, ids = environment.clock, environment.ids
    trust = PeerTrust(secrets_of(environment.secret), lambda: level.written, environment.ids)
    roster = Roster(coordination, roster_changed, trust.is_known)
    level = ClusterLevel(coordination, roster, level_changed)
    environment.peers.begin(trust, Addresses(roster, trust), clock, ids)
    catalog = Catalog(coordination, topic_closed)
    admin = AdminToken(settings.admin_token_path)
    admin.require()
    callers = Callers(coordination, environment.clock, admin)
    return Core(
        callers=callers,
        accounts=Accounts(clock.monotonic_s()),
        audit=Audit(mode_of(settings), settings.name, environment.clock),
        catalog=catalog,
        tombstones=Tombstones(coordination),
        quota=ClusterQuota(catalog, coordination, settings.max_topics, settings.max_segments, callers.view.limits_of),
        roster=roster,
        level=level,
        trust=trust,
        gate=PeerGate(trust, clock, ids, has_port=bool(environment.peer_url)),
        budget=budget,
        cache=cache,
        reader=Reader(cache, clock),
    )
