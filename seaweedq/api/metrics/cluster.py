"""Metrics of the cluster as one broker sees it: subscriptions, brokers, levels, journals of dead brokers, load,
splits, merges and rolls, and retention.

Those of segments are of all together: per segment, 10,000 segments would have 80,000 series.
"""

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
    "messages": _of_each("lag_messages", "Messages not acked yet, as far as this broker knows", "one that only rises"),
    "size_bytes": _of_each("lag_bytes", "About how many bytes these take in files and memory, as far as known here"),
    "seconds": _of_each(
        "lag_seconds", "The age of the oldest of these, at least, as far as it is known here", "one that only rises"
    ),
    "in_flight": _of_each("in_flight", "Messages that are leased"),
    "delayed": _of_each("delayed", "Messages that come again later, after a nack or a backoff"),
    "dying": _of_each(
        "dying",
        "Messages that were given up and whose dead letters are not durable yet",
        "above 0 for minutes: [dead letters](../operate/operations.md#dead-letters)",
    ),
    "waiting": _of_each("waiting", "Messages that are for whoever pulls next"),
    "skipped": _of_each(
        "skipped",
        "Messages that retention took before they were acked, since this broker dispatches them",
        "any",
    ),
    "consumers": _of_each(
        "consumers", "Consumers that wait at any broker, pulled within the last second, or hold messages"
    ),
    "idle_consumers": _of_each(
        "idle_consumers",
        "Consumers that get nothing, since an ordered subscription has fewer segments",
        "any: use `keyed` or `shared`, or more segments",
    ),
    "waiting_pulls": _of_each("waiting_pulls", "Open long polls, at any broker"),
    "held_up_s": _of_each(
        "held_up_seconds",
        "Time for which the successors of a segment have waited for the same unacked message; the log names it",
        "over some minutes: ack that message, or set `max_attempts` and a `dead_letter_topic`",
    ),
}
STALLED = gauge(
    "seaweedq_subscription_stalled",
    "1 where nothing is delivered of what waits, for this reason: window, max_in_flight, paused",
    "topic",
    "subscription",
    "reason",
    watch="any 1 that you do not expect",
)
DELIVERED = counter(
    "seaweedq_delivered_messages_total",
    "Messages that this broker has delivered to consumers; one that is delivered again counts again",
)
LETTERS = counter(
    "seaweedq_dead_letters_total",
    "Dead letters that this broker has published",
    watch="more than a few: look at their headers",
)
SUBSCRIPTIONS = (*OF_BEHIND.values(), STALLED, DELIVERED, LETTERS)


def subscription_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the `metrics_subscriptions` subscriptions of this broker that are furthest behind: a series for
    each of a hundred thousand would be too many. Reads nothing from the store, and asks nobody."""
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
    yield UNREACHABLE.of(sum(map(recovery.is_unreachable, dead)))
    yield NEEDING_NEWER.of(sum(known.record.needs_newer for known in roster.journals.values()))


def suspicion_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of brokers that seemed dead to others."""
    yield SUSPICIONS.of(broker.suspecting.prober.suspicions)
    yield REVOCATIONS.of(broker.suspecting.revoker.revocations)
    yield OWN_REVOCATIONS.of(broker.process.revoked.count)


MESSAGES = gauge(
    "seaweedq_messages_per_second",
    "Messages that this broker's segments take, as averages over windows of so many seconds",
    "window_s",
    watch="one broker far over the others for long",
)
BYTES = gauge("seaweedq_bytes_per_second", "Bytes that they take, averaged in the same way", "window_s")
WITHHELD = counter(
    "seaweedq_reshapes_withheld_total",
    "At the leader: splits and merges that were left out, since the cluster has max_segments",
    watch="any increase: delete topics, or raise `max_segments` on all brokers",
)
HOT = gauge(
    "seaweedq_hot_segments",
    "At the leader, of the whole cluster: segments with too much load, most of it from one key; 0 at the others",
    watch="over 0 for long: [one hot key](../internals/scaling.md#one-hot-key)",
)
UNDER_WAY = gauge(
    "seaweedq_reshapes_under_way",
    "Splits, merges and rolls that this broker is carrying out",
    watch="above 0 for minutes: the store or coordination does not work",
)
DONE = counter(
    "seaweedq_reshapes_total",
    "Splits, merges and rolls that this broker has carried out",
    "kind",
    watch="many each hour: [what to do](../operate/operations.md#segments-that-split-and-merge)",
)
PAUSE = histogram(
    "seaweedq_reshape_pause_seconds",
    "Time for which each of them kept its segments from accepting messages, until the successors could",
    watch="seconds: the store is slow",
)
FILES = counter("seaweedq_retention_files_deleted_total", "Files that retention has deleted")
PAYLOADS = counter(
    "seaweedq_retention_payloads_deleted_total", "Payloads that only rows of such files have named, and are deleted"
)
HELD = gauge(
    "seaweedq_retention_held",
    "At the leader: 1 where retention takes and deletes nothing for this reason: clock, restored",
    "reason",
    watch="any 1: [what it means](../operate/operations.md#retention)",
)
SNAPSHOT_AGE = gauge(
    "seaweedq_snapshot_age_seconds",
    "At the leader: how long ago the store had all that coordination had, or it began to lead; 0 at the others",
    watch="over 10 min: what [a loss of coordination](../internals/lost-coordination.md) would cost grows",
)
SNAPSHOT_BYTES = gauge("seaweedq_snapshot_bytes", "Size of the last snapshot of coordination that this broker has put")
SNAPSHOTS = counter("seaweedq_snapshots_total", "Snapshots of coordination that this broker has put into the store")
WORKS = counter(
    "seaweedq_file_works_total",
    "Imports and writes that this broker has ended, by kind (import, write) and state (done, failed)",
    "kind",
    "state",
    watch="a rise of `failed`: the [import](http.md#imports) or [write](http.md#writes) says why",
)
WORK_ROWS = counter("seaweedq_file_work_rows_total", "Rows of them that became durable at this broker", "kind")
WORKING = gauge(
    "seaweedq_file_works_under_way",
    "Imports and writes that this broker works on, or that wait for their turn",
    "kind",
    watch="over 2 for long: they wait for one another",
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
    """Yields metrics of retention, which works at the leader."""
    retention = broker.retaining.retention
    rounds = retention.rounds
    yield HELD.by({reason: rounds.leads and rounds.held == reason for reason in REASONS})
    yield FILES.of(retention.files)
    yield PAYLOADS.of(retention.payloads.deleted)


def snapshot_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the snapshots of coordination, which the leader puts."""
    snapshots = broker.leadership.snapshots
    yield SNAPSHOT_AGE.of(snapshots.age_s)
    yield SNAPSHOTS.of(snapshots.made)
    yield SNAPSHOT_BYTES.of(snapshots.size_bytes)
