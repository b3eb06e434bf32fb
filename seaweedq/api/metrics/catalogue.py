"""Every family of metrics, in the order of docs/reference/metrics.md, and the sources that a broker reads them from."""

from collections.abc import Mapping, Sequence

from seaweedq.api.metrics import cluster, log, requests, segments, subscriptions
from seaweedq.api.metrics.cluster import ClusterMetrics, JournalMetrics, SuspicionMetrics
from seaweedq.api.metrics.families import Family, Source
from seaweedq.api.metrics.log import LogMetrics, MemoryMetrics, PutMetrics, StoreMetrics
from seaweedq.api.metrics.segments import LoadMetrics, ReshapeMetrics, RetentionMetrics
from seaweedq.api.metrics.subscriptions import SubscriptionMetrics
from seaweedq.broker.broker import Broker

GROUPS: Mapping[str, Sequence[Family]] = {
    "Requests": requests.FAMILIES,
    "Strangers, limits and the audit": requests.OF_STRANGERS,
    "The journal": log.LOG,
    "Tails and files": log.FILES,
    "The store": log.STORE,
    "Memory and threads": log.MEMORY,
    "Subscriptions": subscriptions.FAMILIES,
    "The cluster": cluster.CLUSTER,
    "Journals of dead brokers": cluster.JOURNALS,
    "Brokers that seem dead": cluster.SUSPICION,
    "Load": segments.LOAD,
    "Segments that split and merge": segments.RESHAPES,
    "Retention": segments.RETENTION,
    "The process": requests.OF_PROCESS,
}


def sources_of(broker: Broker) -> Sequence[Source]:
    """Returns the sources of a broker's metrics, in the order of the catalogue."""
    process, log = broker.process, broker.log
    settings, clock = process.settings, process.clock
    return (
        LogMetrics(log, broker.budget, clock),
        PutMetrics(log.journal, clock, settings.put_usd_per_1000),
        StoreMetrics(process.store),
        MemoryMetrics(broker.budget, process.pools),
        SubscriptionMetrics(broker.subscribing.meter, broker.dead_lettering.letters, settings.metrics_subscriptions),
        ClusterMetrics(broker),
        JournalMetrics(broker),
        SuspicionMetrics(broker),
        LoadMetrics(broker),
        ReshapeMetrics(broker.reshaping.reshaper),
        RetentionMetrics(broker.retaining.retention),
        *broker.services,
    )
