"""Metrics of the cluster as one broker sees it: subscriptions, brokers, levels, journals of dead brokers, load, splits,
merges, rolls and retention.

Segment metrics are totals over all segments, because 10,000 segments would otherwise have 80,000 series."""

from collections.abc import Iterator
from typing import get_args

import msgspec
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
    "messages": _of_each("lag_messages", "Number of unacked messages", "Investigate a value that only rises"),
    "size_bytes": _of_each("lag_bytes", "Approximate size of the unacked messages"),
    "seconds": _of_each("lag_seconds", "Age of the oldest unacked message", "Investigate a value that only rises"),
    "in_flight": _of_each("in_flight", "Number of messages that consumers hold under a lease"),
    "delayed": _of_each("delayed", "Number of nacked or timed-out messages whose redelivery is delayed"),
    "dying": _of_each(
        "dying",
        "Number of failed messages that brokers have not yet stored in the dead-letter topic",
        "If the value stays above 0 for minutes, see [dead letters](../operate/operations.md#dead-letters)",
    ),
    "waiting": _of_each("waiting", "Number of messages that are ready for the next pull"),
    "skipped": _of_each(
        "skipped",
        "Number of messages that retention deleted before consumers acked them",
        "Investigate any value above 0",
    ),
    "consumers": _of_each("consumers", "Number of active consumers on all brokers"),
    "idle_consumers": _of_each(
        "idle_consumers",
        "Number of consumers that receive nothing because an ordered subscription has fewer segments than consumers",
        "If the value is above 0, use the mode `keyed`",
    ),
    "waiting_pulls": _of_each("waiting_pulls", "Number of the subscription's open long polls on all brokers"),
    "held_up_s": _of_each(
        "held_up_seconds",
        "Time for which one unacked message of a split or merged segment has blocked delivery from the new segments; "
        "the broker's log names this message",
        "If the value rises to several minutes, set `max_attempts`",
    ),
}
STALLED = gauge(
    "seaweedq_subscription_stalled",
    "The value is 1 if the broker does not deliver waiting messages. The label 'reason' says why: 'paused', "
    "'max_in_flight', or 'window' (the first unacked message is 100,000 messages behind the newest delivered message)",
    "topic",
    "subscription",
    "reason",
    watch="Investigate any unexpected value of 1",
)
DELIVERED = counter(
    "seaweedq_delivered_messages_total",
    "Number of messages delivered to consumers, including redeliveries",
)
LETTERS = counter(
    "seaweedq_dead_letters_total",
    "Number of published dead letters",
    watch="A rising value means that consumers fail to process messages",
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
    "Number of this broker's lease renewals that coordination did not answer",
    watch="If the value rises, coordination is slow or unreachable",
)
LEVEL = gauge("seaweedq_cluster_level", "Version of the data formats (format level) that the cluster's brokers write")
POSSIBLE = gauge(
    "seaweedq_cluster_level_possible",
    "Format level to which the cluster could be upgraded now",
    watch="If the value exceeds `seaweedq_cluster_level`, see [upgrading](../operate/upgrading.md)",
)
BROKERS = gauge(
    "seaweedq_brokers",
    "Number of running brokers in the cluster",
    watch="Investigate a value below the number of brokers that you run",
)
LEADER = gauge(
    "seaweedq_leader",
    "The value is 1 if this broker is the leader",
    watch="Investigate if the sum over all brokers is not 1",
)
SEGMENTS = gauge(
    "seaweedq_segments_owned",
    "Number of segments that this broker owns",
    watch="Investigate a value that differs greatly from the values of other brokers",
)
UNSERVED = gauge(
    "seaweedq_segments_unserved",
    "Number of open segments whose owner is not running",
    watch="If the value is above 0, publishes to these segments get 503",
)
TOPICS = gauge(
    "seaweedq_topics",
    "Number of topics in the cluster",
    watch="If the value rises unexpectedly, a publisher may be misspelling a topic's name",
)
UNREADABLE = gauge(
    "seaweedq_unreadable_records",
    "Number of records in coordination that this broker cannot read",
    "kind",
    watch="If the value is above 0, see [unreadable records](../operate/coordination.md#records-that-cannot-be-read)",
)
UNRECOVERED = gauge(
    "seaweedq_journals_unrecovered",
    "Number of journals of dead brokers that no broker has recovered yet",
    watch="If the value stays above 0 for minutes, see the leader's log",
)
UNREACHABLE = gauge(
    "seaweedq_journals_unreachable",
    "Number of journals of dead brokers that this broker cannot reach",
    watch="If the value is above 0 on all brokers, no broker can recover these journals",
)
UNKNOWN = gauge(
    "seaweedq_journal_unknown_since_seconds",
    "Unix time at which the journal of the dead broker in the label broker became unreachable for all brokers",
    "broker",
    watch="If /metrics contains this metric, see [the mirrored journal](../operate/cluster.md#the-mirrored-journal)",
)
NEEDING_NEWER = gauge(
    "seaweedq_journals_needing_newer",
    "Number of journals of dead brokers that no running broker can read",
    watch="If the value is above 0, start a broker with a newer version",
)
SUSPICIONS = counter(
    "seaweedq_suspicions_total",
    "Number of times that this broker reported another broker as dead, because that broker refused connections",
    watch="Investigate a value above the number of [killed brokers](../internals/protocol.md#suspicion)",
)
REVOCATIONS = counter(
    "seaweedq_revocations_total",
    "Number of leases that this broker revoked because their brokers seemed to be dead",
    watch="Investigate a value above the number of killed brokers",
)
OWN_REVOCATIONS = counter(
    "seaweedq_own_revocations_total",
    "Number of times that other brokers revoked this running broker's lease",
    watch="If the value rises, check `advertise_url` and firewalls",
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
    there = roster.journals.items()
    wanted = [one for one, found in there if not (found.record.recovered and found.record.loss_accepted_us)]
    dead = [one for one in wanted if not roster.alive(one)]
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
    "Inbound messages per second, averaged over window_s seconds",
    "window_s",
    watch="Investigate a value far above the values of other brokers",
)
BYTES = gauge("seaweedq_bytes_per_second", "Inbound bytes per second, averaged over window_s seconds", "window_s")
WITHHELD = counter(
    "seaweedq_reshapes_withheld_total",
    "Number of splits and merges that the leader did not begin because of the setting max_segments, or the segment "
    "limit of the topic's creator",
    watch="If the value rises, raise the limit",
)
HOT = gauge(
    "seaweedq_hot_segments",
    "Number of overloaded segments in the cluster that get most of their load from one key",
    watch="If the value stays above 0 for a long time, see [one hot key](../internals/scaling.md#one-hot-key)",
)
WANTED = gauge(
    "seaweedq_brokers_wanted",
    "Number of brokers that the cluster's load needs",
    watch="If the leader's value differs from the number of brokers, see [the number of "
    "brokers](../operate/cluster.md#the-number-of-brokers)",
)
UTILIZATION = gauge(
    "seaweedq_utilization",
    "Used fraction of this broker's CPU, of its memory budget, or of a limit in a capacity_* setting",
    "resource",
    watch="Investigate a broker with a value near 1",
)
UNDER_WAY = gauge(
    "seaweedq_reshapes_under_way",
    "Number of splits, merges and rolls of segments in progress",
    watch="A value that stays above 0 for minutes means that writes to the store fail",
)
DONE = counter(
    "seaweedq_reshapes_total",
    "Number of finished splits, merges and rolls of segments",
    "kind",
    watch="If there are many each hour, see [splits and "
    "merges](../operate/operations.md#segments-that-split-and-merge)",
)
PAUSE = histogram(
    "seaweedq_reshape_pause_seconds",
    "Time for which publishes waited during a split, merge or roll of their segment",
    watch="A time of several seconds means that the store is slow",
)
FILES = counter("seaweedq_retention_files_deleted_total", "Number of files deleted because of retention")
PAYLOADS = counter("seaweedq_retention_payloads_deleted_total", "Number of payloads deleted because of retention")
HELD = gauge(
    "seaweedq_retention_held",
    "The value is 1 if this broker is the leader and has suspended retention",
    "reason",
    watch="If the value is 1, see [retention](../operate/operations.md#retention)",
)
SNAPSHOT_AGE = gauge(
    "seaweedq_snapshot_age_seconds",
    "Age of the oldest change in the coordination database that no snapshot contains yet",
    watch="If the value is above 10 minutes, see the leader's log",
)
SNAPSHOT_BYTES = gauge("seaweedq_snapshot_bytes", "Size of the last stored snapshot of coordination")
SNAPSHOTS = counter("seaweedq_snapshots_total", "Number of stored snapshots of coordination")
WORKS = counter(
    "seaweedq_file_works_total",
    "Number of imports and writes that have ended, with their final state",
    "kind",
    "state",
    watch="Investigate a rise of the number with the state `failed`",
)
WORK_ROWS = counter(
    "seaweedq_file_work_rows_total",
    "Number of rows that imports and writes have made durable",
    "kind",
)
WORKING = gauge(
    "seaweedq_file_works_under_way",
    "Number of imports and writes that are running or waiting. A broker runs at most 2 imports and writes at a time",
    "kind",
    watch="If the sum over all kinds is above 2, some of them wait",
)
LOAD = (MESSAGES, BYTES, HOT, WANTED, UTILIZATION)
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
    yield WANTED.of(broker.leadership.brokers_wanted)
    yield UTILIZATION.by(msgspec.structs.asdict(broker.load.loads.utilization()))


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
