"""The metrics of a broker that serves, with the services that they are read from."""

from collections.abc import Sequence

from seaweedq.api.metrics.cluster import ClusterMetrics, JournalMetrics, SuspicionMetrics
from seaweedq.api.metrics.families import Source
from seaweedq.api.metrics.log import LogMetrics, MemoryMetrics, PutMetrics, StoreMetrics
from seaweedq.api.metrics.segments import LoadMetrics, ReshapeMetrics, RetentionMetrics
from seaweedq.api.metrics.subscriptions import SubscriptionMetrics
from seaweedq.broker.broker import Broker


def sources_of(broker: Broker) -> Sequence[Source]:
    """Returns the sources of a broker's metrics, in the order of the catalogue."""
    core, joined, serving, environment = broker.core, broker.joined, broker.serving, broker.environment
    leading, suspecting = serving.leading, serving.suspecting
    settings = environment.settings
    return (
        LogMetrics(serving.log, core.budget, environment.clock),
        PutMetrics(serving.log.journal, environment.clock, settings.put_usd_per_1000),
        StoreMetrics(environment.store),
        MemoryMetrics(core.budget, environment.pools),
        SubscriptionMetrics(serving.subscribing.meter, serving.letters, settings.metrics_subscriptions),
        ClusterMetrics(joined.view, joined.election, core.level),
        JournalMetrics(joined.view, joined.recovery),
        SuspicionMetrics(suspecting.greeter, suspecting.revoker, environment.revoked),
        LoadMetrics(serving.loads, leading.autoscaler, joined.election),
        ReshapeMetrics(serving.reshaping.reshaper),
        RetentionMetrics(leading.retention),
    )
