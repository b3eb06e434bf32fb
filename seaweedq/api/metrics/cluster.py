"""Metrics of the cluster as one broker sees it: subscriptions, brokers, levels, journals of dead brokers, load, splits,
merges, rolls and retention.

Segment metrics are totals over all segments, because 10,000 segments would otherwise have 80,000 series."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import Metric

from seaweedq.api.metrics.families import Family, counter, gauge, histogram
from seaweedq.balancer.load import WINDOWS_S
from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape import KINDS
from seaweedq.broker.retention import REASONS
from seaweedq.broker.subscriptions import Stall
from seaweedq.coordination.keys import CATALOGUE
from seaweedq.coordination.versioned import UNREADABLE_RECORDS


def _of_each(name: str, help: str, watch: str = "") -> Family:
    return gauge(f"seaweedq_subscription_{name}", help, "topic", "subscription", watch=watch)


OF_BEHIND = {  # by the member of Behind
    "messages": _of_each("lag_messages", "Unacked messages, as far as this broker knows", "a value that only rises"),
    "size_bytes": _of_each("lag_bytes", "Approximate bytes of unacked messages, as far as this broker knows"),
    "seconds": _of_each(
        "lag_seconds",
        "Minimum age of the oldest unacked message, as far as this broker knows",
        "a value that only rises",
    ),
    "in_flight": _of_each("in_flight", "Leased messages"),
    "delayed": _of_each("delayed", "Messages waiting for redelivery after a nack or a backoff"),
    "dying": _of_each(
        "dying",
        "Messages that will not be delivered again, and whose dead letters are not durable yet",
        "above 0 for minutes: [dead letters](../operate/operations.md#dead-letters)",
    ),
    "waiting": _of_each("waiting", "Messages ready for the next pull"),
    "skipped": _of_each(
        "skipped",
        "Unacked messages that retention has deleted since this broker began to dispatch the subscription",
        "any",
    ),
    "consumers": _of_each(
        "consumers",
        "Consumers that are waiting for messages, have pulled within the last second, or hold messages, on all brokers",
    ),
    "idle_consumers": _of_each(
        "idle_consumers",
        "Consumers that receive nothing because an ordered subscription has fewer segments than consumers",
        "any: use `keyed` or `shared`, or more segments",
    ),
    "waiting_pulls": _of_each("waiting_pulls", "Open long polls on all brokers"),
    "held_up_s": _of_each(
        "held_up_seconds",
        "How long a segment's successors have waited for the same unacked message, which the log names",
        "minutes: ack that message, or set `max_attempts` and a `dead_letter_topic`",
    ),
}
STALLED = gauge(
    "seaweedq_subscription_stalled",
    "1 if messages are waiting but not delivered for this reason: window, max_in_flight or paused",
    "topic",
    "subscription",
    "reason",
    watch="an unexpected 1",
)
DELIVERED = counter(
    "seaweedq_delivered_messages_total",
    "Messages delivered to consumers by this broker, including redeliveries",
)
LETTERS = counter(
    "seaweedq_dead_letters_total",
    "Dead letters published by this broker",
    watch="more than a few: look at their headers",
)
SUBSCRIPTIONS = (*OF_BEHIND.values(), STALLED, DELIVERED, LETTERS)


def subscription_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the `metrics_subscriptions` subscriptions of this broker with the largest lag, because a series
    for each of a hundred thousand subscriptions would be too many. Sends no request to the store or to other
    brokers."""
    behind = broker.subscribing.meter.furthest_behind(broker.process.settings.metrics_subscriptions)
    for member, family in OF_BEHIND.items():
        yield family.each(((one.topic, one.name), getattr(one, member)) for one in behind)
    yield STALLED.each(
        ((one.topic, one.name, reason), one.stalled == reason) for one in behind for reason in get_args(Stall)
    )
    yield DELIVERED.of(broker.subscribing.dispatcher.delivered)
    yield LETTERS.of(broker.dead_lettering.letters.published)


RENEWALS = counter(
    "seaweedq_lease_renewals_missed_total",
    "Renewals of this broker's lease that got no answer",
    watch="a rise: coordination is slow or unreachable. A broker without a renewal for `lease_s` answers 503",
)
LEVEL = gauge("seaweedq_cluster_level", "Format level that the cluster writes")
POSSIBLE = gauge(
    "seaweedq_cluster_level_possible",
    "Format level to which the cluster could be upgraded now",
    watch="above `seaweedq_cluster_level` for weeks: [upgrading](../operate/upgrading.md)",
)
BROKERS = gauge("seaweedq_brokers", "Running brokers", watch="fewer than you run")
LEADER = gauge(
    "seaweedq_leader", "1 if this broker is the leader", watch="a sum over all brokers that is not 1 for long"
)
SEGMENTS = gauge(
    "seaweedq_segments_owned", "Segments owned by this broker", watch="a value far from the other brokers' for long"
)
UNSERVED = gauge(
    "seaweedq_segments_unserved",
    "Open segments whose owner is not running, as far as this broker knows",
    watch="above 0 for a minute: publishes to these segments get 503",
)
TOPICS = gauge("seaweedq_topics", "Topics", watch="more than you created: a publisher misspelt a name")
UNREADABLE = gauge(
    "seaweedq_unreadable_records",
    "Records in coordination that this broker cannot read, by kind",
    "kind",
    watch="over 0: a newer broker is needed, or coordination is damaged:"
    " [what to do](../operate/coordination.md#records-that-cannot-be-read)",
)
UNRECOVERED = gauge(
    "seaweedq_journals_unrecovered",
    "Journals of dead brokers that have not been recovered yet",
    watch="above 0 for minutes: the leader's log has the reason",
)
UNREACHABLE = gauge(
    "seaweedq_journals_unreachable",
    "Journals of dead brokers that this broker cannot reach; their segments wait",
    watch="above 0 on all brokers: make the dead broker's folder available again",
)
UNKNOWN = gauge(
    "seaweedq_journal_unknown_since_seconds",
    "Unix time since which no running broker can reach the journal of this dead broker; its segments wait",
    "broker",
    watch="any: start the dead broker's folder or its mirrors again, or"
    " [accept the loss](../operate/cluster.md#the-mirrored-journal)",
)
NEEDING_NEWER = gauge(
    "seaweedq_journals_needing_newer",
    "Journals of dead brokers that no running broker can read; their segments wait",
    watch="above 0: start a broker of the version that wrote them",
)
SUSPICIONS = counter(
    "seaweedq_suspicions_total",
    "Brokers that this broker reported as suspected because they refused its connections",
    watch="more than [brokers that were killed](../internals/protocol.md#suspicion)",
)
REVOCATIONS = counter(
    "seaweedq_revocations_total", "Leases of other brokers that this broker revoked on suspicion", watch="the same"
)
OWN_REVOCATIONS = counter(
    "seaweedq_own_revocations_total",
    "Leases of this process that other brokers revoked while it was running",
    watch="any: other brokers cannot connect to this one. Check `advertise_url`, firewalls and sidecars",
)
JOURNALS = (UNRECOVERED, UNREACHABLE, UNKNOWN, NEEDING_NEWER)
CLUSTER = (BROKERS, LEADER, RENEWALS, LEVEL, POSSIBLE, TOPICS, SEGMENTS, UNSERVED, UNREADABLE)
SUSPICION = (SUSPICIONS, REVOCATIONS, OWN_REVOCATIONS)


def cluster_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of brokers, topics, segments and levels."""
    catalog, roster, level = broker.catalog, broker.roster, broker.level
    membership, election = broker.context.membership, broker.context.election
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


def journal_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the journals of dead brokers."""
    roster, recovery = broker.roster, broker.recovery.journals
    dead = [one for one in roster.journals if not roster.alive(one)]
    dead += [one for one in roster.unreadable_journals if not roster.alive(one)]
    yield UNRECOVERED.of(len(dead))
    yield UNREACHABLE.of(sum(recovery.unreached(one) is not None for one in dead))
    unknown = {one: found.record.unknown for one, found in roster.journals.items() if found.record.unknown}
    yield UNKNOWN.by({one: found.since_us / 1e6 for one, found in unknown.items() if not roster.alive(one)})
    yield NEEDING_NEWER.of(sum(known.record.needs_newer for known in roster.journals.values()))


def suspicion_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of brokers that other brokers suspected to be dead."""
    yield SUSPICIONS.of(broker.suspecting.prober.suspicions)
    yield REVOCATIONS.of(broker.suspecting.revoker.revocations)
    yield OWN_REVOCATIONS.of(broker.process.revoked.count)


MESSAGES = gauge(
    "seaweedq_messages_per_second",
    "Inbound messages per second in this broker's segments, averaged over as many seconds as the label states",
    "window_s",
    watch="one broker far above the others for long",
)
BYTES = gauge(
    "seaweedq_bytes_per_second",
    "Inbound bytes per second in this broker's segments, averaged over as many seconds as the label states",
    "window_s",
)
WITHHELD = counter(
    "seaweedq_reshapes_withheld_total",
    "On the leader: splits and merges skipped because the cluster has reached max_segments",
    watch="any increase: delete topics, or raise `max_segments` on all brokers",
)
HOT = gauge(
    "seaweedq_hot_segments",
    "On the leader: overloaded segments in the cluster that get most of their load from one key. 0 on other brokers",
    watch="above 0 for long: [one hot key](../internals/scaling.md#one-hot-key)",
)
UNDER_WAY = gauge(
    "seaweedq_reshapes_under_way",
    "Splits, merges and rolls in progress on this broker",
    watch="above 0 for minutes: the store or coordination is failing",
)
DONE = counter(
    "seaweedq_reshapes_total",
    "Splits, merges and rolls done by this broker",
    "kind",
    watch="many each hour: [what to do](../operate/operations.md#segments-that-split-and-merge)",
)
PAUSE = histogram(
    "seaweedq_reshape_pause_seconds",
    "How long a split, merge or roll kept its segments from accepting messages",
    watch="seconds: the store is slow",
)
FILES = counter("seaweedq_retention_files_deleted_total", "Files deleted by retention")
PAYLOADS = counter("seaweedq_retention_payloads_deleted_total", "Payloads deleted by retention")
HELD = gauge(
    "seaweedq_retention_held",
    "On the leader: 1 if retention is suspended for this reason: clock or restored",
    "reason",
    watch="any 1: [what it means](../operate/operations.md#retention)",
)
SNAPSHOT_AGE = gauge(
    "seaweedq_snapshot_age_seconds",
    "On the leader: for how long coordination has had changes that are in no snapshot. 0 on other brokers",
    watch="above 10 minutes: [a loss of coordination](../internals/lost-coordination.md) would lose these changes",
)
SNAPSHOT_BYTES = gauge("seaweedq_snapshot_bytes", "Size of this broker's last snapshot of coordination")
SNAPSHOTS = counter("seaweedq_snapshots_total", "Snapshots of coordination stored by this broker")
WORKS = counter(
    "seaweedq_file_works_total",
    "Imports and writes finished by this broker, by kind (import, write) and state (done, failed)",
    "kind",
    "state",
    watch="a rise of `failed`: the [import](http.md#imports) or [write](http.md#writes) has the reason",
)
WORK_ROWS = counter("seaweedq_file_work_rows_total", "Rows of imports and writes that this broker made durable", "kind")
WORKING = gauge(
    "seaweedq_file_works_under_way",
    "Imports and writes running or queued on this broker",
    "kind",
    watch="above 2 for long: imports queue",
)
LOAD = (MESSAGES, BYTES, HOT)
FILE_WORK = (WORKS, WORK_ROWS, WORKING)
RESHAPES = (DONE, UNDER_WAY, PAUSE, WITHHELD)
RETENTION = (HELD, FILES, PAYLOADS)
SNAPSHOT = (SNAPSHOT_AGE, SNAPSHOTS, SNAPSHOT_BYTES)


def load_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of load."""
    for family, averages in zip((MESSAGES, BYTES), broker.load.loads.totals(), strict=True):
        windows = zip(WINDOWS_S, averages, strict=True)
        yield family.by({f"{window_s:.0f}": average for window_s, average in windows})
    autoscaler = broker.leadership.autoscaler
    yield HOT.of(len(autoscaler.hot) if broker.context.election.is_leader else 0)
    yield WITHHELD.of(autoscaler.withheld)


def reshape_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of splits, merges and rolls."""
    reshaper = broker.reshaping.reshaper
    counters = reshaper.counters
    yield UNDER_WAY.of(reshaper.under_way)
    yield DONE.by({kind: counters.done[kind] for kind in KINDS})
    yield PAUSE.durations([((), counters.pauses)])


def file_work_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of imports and writes."""
    by_kind = {"import": broker.importing.counts, "write": broker.writing.counts}
    yield WORKS.each(((kind, state), ended) for kind, one in by_kind.items() for state, ended in one.ended.items())
    yield WORK_ROWS.by({kind: one.rows for kind, one in by_kind.items()})
    yield WORKING.by({"import": broker.importing.under_way, "write": broker.writing.under_way})


def retention_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of retention, which runs on the leader."""
    retention = broker.retaining.retention
    rounds = retention.rounds
    yield HELD.by({reason: rounds.leads and rounds.held == reason for reason in REASONS})
    yield FILES.of(retention.files)
    yield PAYLOADS.of(retention.payloads.deleted)


def snapshot_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the snapshots of coordination, which the leader writes."""
    snapshots = broker.leadership.snapshots
    yield SNAPSHOT_AGE.of(snapshots.age_s)
    yield SNAPSHOTS.of(snapshots.made)
    yield SNAPSHOT_BYTES.of(snapshots.size_bytes)
