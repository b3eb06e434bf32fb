"""Metrics of the cluster as one broker sees it: brokers, levels, journals of the dead, and who seems dead to whom."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric

from seaweedq.api.metrics.families import counter, gauge
from seaweedq.broker.broker import Broker
from seaweedq.coordination.keys import CATALOGUE
from seaweedq.coordination.versioned import UNREADABLE_RECORDS

RENEWALS = counter(
    "seaweedq_lease_renewals_missed_total",
    "Renewals of this broker's lease that got no answer",
    watch="a rise: coordination is slow or away; a broker whose renewals are all missed for `lease_s` answers 503",
)
LEVEL = gauge("seaweedq_cluster_level", "The level at which the cluster writes")
POSSIBLE = gauge(
    "seaweedq_cluster_level_possible",
    "The level to which the cluster could rise now",
    watch="above `seaweedq_cluster_level` for weeks: [upgrading](../operate/upgrading.md)",
)
BROKERS = gauge("seaweedq_brokers", "Living brokers", watch="fewer than you run")
LEADER = gauge("seaweedq_leader", "1 where this broker leads", watch="a sum over all brokers that is not 1 for long")
SEGMENTS = gauge("seaweedq_segments_owned", "Segments of this broker", watch="a value that stays far from the others")
UNSERVED = gauge(
    "seaweedq_segments_unserved",
    "Open segments whose owner does not live, or that have none, as this broker knows it",
    watch="over 0 for a minute: their publishes get 503",
)
TOPICS = gauge("seaweedq_topics", "Topics", watch="more than you created: a publisher's misspelt name")
UNREADABLE = gauge(
    "seaweedq_unreadable_records",
    "Records in coordination that this broker has met and cannot read, by kind",
    "kind",
    watch="over 0: a newer broker is needed, or coordination is damaged:"
    " [what to do](../operate/coordination.md#records-that-cannot-be-read)",
)
UNRECOVERED = gauge(
    "seaweedq_journals_unrecovered",
    "Journals of dead brokers that are not recovered yet",
    watch="over 0 for minutes: the leader's log says why",
)
UNREACHABLE = gauge(
    "seaweedq_journals_unreachable",
    "Those of them that this broker has tried and cannot reach: their contents are unknown, and their segments wait",
    watch="over 0 at all brokers: bring the dead broker's folder back",
)
NEEDING_NEWER = gauge(
    "seaweedq_journals_needing_newer",
    "Those of them that no living broker can read; their segments wait",
    watch="above 0: start a broker of the version that wrote them",
)
SUSPICIONS = counter(
    "seaweedq_suspicions_total",
    "Brokers that this one has reported, since they refused its connections",
    watch="more than [brokers that were killed](../internals/protocol.md#suspicion)",
)
REVOCATIONS = counter(
    "seaweedq_revocations_total", "Leases of other brokers that this one has ended on suspicion", watch="the same"
)
OWN_REVOCATIONS = counter(
    "seaweedq_own_revocations_total",
    "Leases of this process that others have ended while it lived",
    watch="any: the others cannot connect to it. Look at `advertise_url`, firewalls, sidecars",
)
JOURNALS = (UNRECOVERED, UNREACHABLE, NEEDING_NEWER)
CLUSTER = (BROKERS, LEADER, RENEWALS, LEVEL, POSSIBLE, TOPICS, SEGMENTS, UNSERVED, UNREADABLE)
SUSPICION = (SUSPICIONS, REVOCATIONS, OWN_REVOCATIONS)


@dataclass(frozen=True)
class ClusterMetrics:
    """Metrics of brokers, topics, segments and levels."""

    broker: Broker

    def metrics(self) -> Iterator[Metric]:
        catalog, roster, level = self.broker.catalog, self.broker.roster, self.broker.level
        membership, election = self.broker.context.membership, self.broker.context.election
        yield BROKERS.of(len(roster.brokers))
        yield LEADER.of(election.is_leader)
        yield RENEWALS.of(membership.missed_renewals)
        yield LEVEL.of(level.written)
        yield POSSIBLE.of(level.possible)
        yield TOPICS.of(len(catalog.names()))
        yield SEGMENTS.of(len(catalog.owned_by(membership.broker)))
        dead = (owner for owner in catalog.owners() if not roster.alive(owner))
        yield UNSERVED.of(sum(len(catalog.owned_by(owner)) for owner in dead))
        met = UNREADABLE_RECORDS.by_kind()
        yield UNREADABLE.by({kind.name: met[kind.name] for kind in CATALOGUE})


@dataclass(frozen=True)
class JournalMetrics:
    """Metrics of the journals of dead brokers."""

    broker: Broker

    def metrics(self) -> Iterator[Metric]:
        roster, recovery = self.broker.roster, self.broker.recovery.journals
        dead = [one for one in roster.journals if not roster.alive(one)]
        dead += [one for one in roster.unreadable_journals if not roster.alive(one)]
        yield UNRECOVERED.of(len(dead))
        yield UNREACHABLE.of(sum(map(recovery.is_unreachable, dead)))
        yield NEEDING_NEWER.of(sum(known.record.needs_newer for known in roster.journals.values()))


@dataclass(frozen=True)
class SuspicionMetrics:
    """Metrics of brokers that seemed dead to others."""

    broker: Broker

    def metrics(self) -> Iterator[Metric]:
        yield SUSPICIONS.of(self.broker.suspecting.prober.suspicions)
        yield REVOCATIONS.of(self.broker.suspecting.revoker.revocations)
        yield OWN_REVOCATIONS.of(self.broker.process.revoked.count)
