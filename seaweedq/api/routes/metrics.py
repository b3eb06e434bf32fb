"""Prometheus metrics: read from the services' own counts when somebody asks, so that the hot path pays nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from seaweedq.api.asgi.connections import Connections
from seaweedq.api.asgi.refusals import Refusals
from seaweedq.balancer.rates import WINDOWS_S
from seaweedq.broker.audit.audit import Audit
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.leader.autoscaler import Autoscaler
from seaweedq.broker.letters.letters import DeadLetters
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.segment_log import SegmentLog
from seaweedq.broker.reshape.metrics import BOUNDS_S, KINDS
from seaweedq.broker.reshape.reshaper import Reshaper
from seaweedq.broker.retention.retention import Retention
from seaweedq.broker.retention.rounds import REASONS
from seaweedq.broker.subscriptions.administration.lag import LagMeter
from seaweedq.broker.subscriptions.delivery.backlog import Stall
from seaweedq.broker.suspicion.greeter import Greeter
from seaweedq.broker.suspicion.own_revocations import OwnRevocations
from seaweedq.broker.suspicion.revoker import Revoker
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.clock import Clock
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.election import Election
from seaweedq.coordination.keys import CATALOGUE
from seaweedq.coordination.unreadable import NOTED
from seaweedq.journal.interface import Journal
from seaweedq.storage.counting import Counted

CONTENT_TYPE = CONTENT_TYPE_LATEST
MONTH_S = 730 * 3600


class Source(Protocol):
    """Some services, with their metrics."""

    def metrics(self) -> Iterator[Metric]:
        """Yields the metrics as they are now."""


class _Exposition(Collector):
    def __init__(self, can_take_work: bool, sources: Sequence[Source]) -> None:
        self._can_take_work = can_take_work
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics of all sources."""
        yield GaugeMetricFamily("seaweedq_ready", "1 when /readyz says 200", value=float(self._can_take_work))
        for source in self._sources:
            yield from source.metrics()


def render(can_take_work: bool, sources: Sequence[Source]) -> bytes:
    """Returns the exposition in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Exposition(can_take_work, sources))
    return generate_latest(registry)


@dataclass(frozen=True)
class StrangerMetrics:
    """Metrics of who is connected, and what was refused to strangers, or told to the audit."""

    refusals: Refusals
    connections: Connections
    audit: Audit

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        help = "Requests and connections that were refused, by reason"
        refused = CounterMetricFamily("seaweedq_refusals", help, labels=["reason"])
        for reason, count in self.refusals.counts.items():
            refused.add_metric([reason], count)
        yield refused
        help = "Seconds that requests beyond a limit were told to wait"
        yield CounterMetricFamily("seaweedq_throttled_seconds", help, value=self.refusals.throttled_s)
        audited = CounterMetricFamily("seaweedq_audit_events", "Changes and denials", labels=["kind"])
        for kind, count in self.audit.counts.items():
            audited.add_metric([kind], count)
        yield audited
        help = "Events that the topic of the audit does not have; the log has them"
        yield CounterMetricFamily("seaweedq_audit_lost", help, value=self.audit.lost)
        yield GaugeMetricFamily("seaweedq_connections", "Connections to this broker", value=len(self.connections))


@dataclass(frozen=True)
class LogMetrics:
    """Metrics of the log, of memory and of the store."""

    log: SegmentLog
    budget: Budget
    store: Counted

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        commit, budget = self.log.commit, self.budget
        yield CounterMetricFamily("seaweedq_messages_published", "Messages made durable", value=commit.messages)
        yield CounterMetricFamily("seaweedq_bytes_published", "Bytes made durable", value=commit.size_bytes)
        yield CounterMetricFamily("seaweedq_commits", "Group commits made durable", value=commit.commits)
        yield CounterMetricFamily("seaweedq_flushes", "Parquet files written", value=self.log.flusher.flushes)
        yield GaugeMetricFamily("seaweedq_tail_bytes", "Durable in the journal, not yet in Parquet", value=budget.tails)
        yield GaugeMetricFamily("seaweedq_request_bytes", "Held by requests in flight", value=budget.in_flight)
        help = "Of those, held by bodies that are still coming"
        yield GaugeMetricFamily("seaweedq_incomplete_body_bytes", help, value=budget.incomplete)
        help = "Of those, held by answers that clients have not taken yet"
        yield GaugeMetricFamily("seaweedq_unread_answer_bytes", help, value=budget.answers)
        help = "Held by recoveries of dead brokers' journals"
        yield GaugeMetricFamily("seaweedq_recovery_bytes", help, value=budget.recovering)
        yield GaugeMetricFamily("seaweedq_cache_bytes", "Decoded row groups", value=budget.cached)
        yield GaugeMetricFamily("seaweedq_memory_budget_bytes", "The memory budget", value=budget.limit_bytes)
        unreleased = self.log.journal.unreleased_bytes
        yield GaugeMetricFamily("seaweedq_journal_unreleased_bytes", "Journal commits still needed", value=unreleased)
        requests = CounterMetricFamily("seaweedq_store_requests", "Requests to the store", labels=["operation"])
        for operation, count in sorted(self.store.requests.items()):
            requests.add_metric([operation], count)
        yield requests


@dataclass(frozen=True)
class PutMetrics:
    """Metrics of an object journal's puts, which some stores charge for."""

    journal: Journal
    clock: Clock
    usd_per_1000: float

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        if (budget := self.journal.budget) is None:
            return
        yield CounterMetricFamily("seaweedq_journal_puts", "Puts of the object journal", value=budget.puts)
        if self.usd_per_1000:
            usd = budget.rate(self.clock.monotonic_s()) * MONTH_S * self.usd_per_1000 / 1000
            help = "Cost of the object journal's puts in a month at their present rate"
            yield GaugeMetricFamily("seaweedq_journal_usd_per_month", help, value=usd)


@dataclass(frozen=True)
class PoolMetrics:
    """Metrics of the pools of threads."""

    pools: Pools

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        help = "Calls that wait for a thread of a pool"
        waiting = GaugeMetricFamily("seaweedq_pool_waiting", help, labels=["pool"])
        for pool in self.pools.all:
            waiting.add_metric([pool.purpose], pool.waiting)
        yield waiting


@dataclass(frozen=True)
class ClusterMetrics:
    """Metrics of the cluster as this broker sees it."""

    view: ClusterView
    election: Election
    level: ClusterLevel

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        missed = self.view.membership.missed_renewals
        help = "Renewals of this broker's lease that got no answer"
        yield CounterMetricFamily("seaweedq_lease_renewals_missed", help, value=missed)
        catalog, leads = self.view.catalog, float(self.election.is_leader)
        help = "The level at which the cluster writes"
        yield GaugeMetricFamily("seaweedq_cluster_level", help, value=self.level.written)
        help = "The level to which the cluster could rise now"
        yield GaugeMetricFamily("seaweedq_cluster_level_possible", help, value=self.level.possible)
        help = "Journals of dead brokers that no living one reads"
        waiting = sum(known.record.needs_newer for known in self.view.roster.journals.values())
        yield GaugeMetricFamily("seaweedq_journals_needing_newer", help, value=waiting)
        owned = len(catalog.owned_by(self.view.membership.broker))
        yield GaugeMetricFamily("seaweedq_brokers", "Living brokers", value=len(self.view.roster.brokers))
        yield GaugeMetricFamily("seaweedq_leader", "1 where this broker leads", value=leads)
        yield GaugeMetricFamily("seaweedq_segments_owned", "Segments of this broker", value=owned)
        yield GaugeMetricFamily("seaweedq_topics", "Topics", value=len(catalog.names()))
        unreadable = GaugeMetricFamily(
            "seaweedq_unreadable_records", "Records that need a newer broker, as far as they were met", labels=["kind"]
        )
        met = NOTED.by_kind()
        for kind in CATALOGUE:
            unreadable.add_metric([kind.name], met[kind.name])
        yield unreadable


@dataclass(frozen=True)
class SuspicionMetrics:
    """Metrics of brokers that seemed dead to others."""

    greeter: Greeter
    revoker: Revoker
    own: OwnRevocations

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        help = "Brokers that this one has reported, since they refused its connections"
        yield CounterMetricFamily("seaweedq_suspicions", help, value=self.greeter.suspicions)
        help = "Leases of other brokers that this one has ended on suspicion"
        yield CounterMetricFamily("seaweedq_revocations", help, value=self.revoker.revocations)
        help = "Leases of this process that others have ended while it lived"
        yield CounterMetricFamily("seaweedq_own_revocations", help, value=self.own.count)


@dataclass(frozen=True)
class LoadMetrics:
    """Metrics of load, of all segments together: per segment, 10,000 segments would have 80,000 series."""

    loads: Loads
    autoscaler: Autoscaler
    election: Election

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        for name, unit, averages in zip(("messages", "bytes"), ("Messages", "Bytes"), self.loads.totals(), strict=True):
            rates = GaugeMetricFamily(
                f"seaweedq_{name}_per_second", f"{unit} that this broker's segments take", labels=["window_s"]
            )
            for window_s, average in zip(WINDOWS_S, averages, strict=True):
                rates.add_metric([f"{window_s:.0f}"], average)
            yield rates
        help = "At the leader: splits and merges left out, since the cluster has max_segments"
        yield CounterMetricFamily("seaweedq_reshapes_withheld", help, value=self.autoscaler.withheld)
        hot = len(self.autoscaler.hot) if self.election.is_leader else 0
        help = "At the leader: segments not split because of one key"
        yield GaugeMetricFamily("seaweedq_hot_segments", help, value=hot)


_OF_SUBSCRIPTIONS = {  # the name of a metric, of the member of Behind, and its help
    "lag_messages": ("messages", "Messages not acked yet, as far as ends are known here"),
    "lag_bytes": ("size_bytes", "About how many bytes these take in files and memory, as far as it is known here"),
    "lag_seconds": ("seconds", "The age of the oldest of these, at least, as far as it is known here"),
    "in_flight": ("in_flight", "Messages that are leased"),
    "delayed": ("delayed", "Messages that come again later, after a nack or a backoff"),
    "dying": ("dying", "Messages whose dead letters are being published"),
    "waiting": ("waiting", "Messages that are for whoever pulls next"),
    "skipped": ("skipped", "Messages that retention took before they were acked, since this broker dispatches them"),
    "consumers": ("consumers", "Consumers that wait, pulled lately, or hold messages"),
    "idle_consumers": (
        "idle_consumers",
        "Consumers that get nothing, since an ordered subscription has fewer segments",
    ),
    "waiting_pulls": ("waiting_pulls", "Pulls that wait for messages"),
    "held_up_seconds": ("held_up_s", "For how long the successors of a segment have waited for the same message"),
}


@dataclass(frozen=True)
class LagMetrics:
    """Metrics of the subscriptions that this broker dispatches, of the `limit` ones that are furthest behind: a series
    for each of a hundred thousand would be too many."""

    meter: LagMeter
    letters: DeadLetters
    limit: int

    def metrics(self) -> Iterator[Metric]:
        """As Source. Reads nothing of the store, and asks nobody."""
        behind = self.meter.furthest_behind(self.limit)
        for name, (what, help) in _OF_SUBSCRIPTIONS.items():
            gauge = GaugeMetricFamily(f"seaweedq_subscription_{name}", help, labels=["topic", "subscription"])
            for one in behind:
                gauge.add_metric([one.topic, one.name], getattr(one, what))
            yield gauge
        help = "1 where nothing is delivered of what waits, for this reason"
        stalled = GaugeMetricFamily("seaweedq_subscription_stalled", help, labels=["topic", "subscription", "reason"])
        for one in behind:
            for reason in get_args(Stall):
                stalled.add_metric([one.topic, one.name, reason], float(one.stalled == reason))
        yield stalled
        help = "Dead letters that this broker has published"
        yield CounterMetricFamily("seaweedq_dead_letters", help, value=self.letters.published)


@dataclass(frozen=True)
class RetentionMetrics:
    """Metrics of retention, which works at the leader."""

    retention: Retention

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        help = "Files that retention has deleted"
        yield CounterMetricFamily("seaweedq_retention_files_deleted", help, value=self.retention.files)
        help, deleted = "Payloads that only rows of deleted files have named", self.retention.payloads.deleted
        yield CounterMetricFamily("seaweedq_retention_payloads_deleted", help, value=deleted)
        help = "At the leader: 1 where retention takes and deletes nothing for this reason"
        held = GaugeMetricFamily("seaweedq_retention_held", help, labels=["reason"])
        rounds = self.retention.rounds
        for reason in REASONS:
            held.add_metric([reason], float(rounds.leads and rounds.held == reason))
        yield held


@dataclass(frozen=True)
class ReshapeMetrics:
    """Metrics of splits, merges and rolls."""

    reshaper: Reshaper

    def metrics(self) -> Iterator[Metric]:
        """As Source."""
        counters = self.reshaper.counters
        under_way = self.reshaper.under_way
        yield GaugeMetricFamily("seaweedq_reshapes_under_way", "Intents being carried out", value=under_way)
        help = "Segments split, merged and rolled by this broker"
        done = CounterMetricFamily("seaweedq_reshapes", help, labels=["kind"])
        for kind in KINDS:
            done.add_metric([kind], counters.done[kind])
        yield done
        bounds = [*map(floatToGoString, BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            "seaweedq_reshape_pause_seconds",
            "How long a reshape held publishes",
            buckets=list(zip(bounds, accumulate(counters.pauses), strict=True)),
            sum_value=counters.paused_s,
        )
