"""Prometheus metrics: read from the broker's own counts when somebody asks, so that the hot path pays nothing."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from seaweedq.balancer.rates import WINDOWS_S
from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape.metrics import BOUNDS_S, KINDS

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Counts(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        yield from _of(self._broker)


def render(broker: Broker) -> bytes:
    """The exposition, in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counts(broker))
    return generate_latest(registry)


def _of(broker: Broker) -> Iterator[Metric]:
    yield GaugeMetricFamily("seaweedq_ready", "1 when /readyz says 200", value=float(broker.readiness.can_take_work))
    if not broker.readiness.ready:
        return
    commit, budget = broker.serving.log.commit, broker.core.budget
    yield CounterMetricFamily("seaweedq_messages_published", "Messages made durable", value=commit.messages)
    yield CounterMetricFamily("seaweedq_bytes_published", "Bytes made durable", value=commit.size_bytes)
    yield CounterMetricFamily("seaweedq_commits", "Group commits made durable", value=commit.commits)
    yield CounterMetricFamily("seaweedq_flushes", "Parquet files written", value=broker.serving.log.flusher.flushes)
    yield GaugeMetricFamily("seaweedq_tail_bytes", "Durable in the journal, not yet in Parquet", value=budget.tails)
    yield GaugeMetricFamily("seaweedq_request_bytes", "Held by requests in flight", value=budget.requests)
    yield GaugeMetricFamily("seaweedq_cache_bytes", "Decoded row groups", value=budget.cached)
    yield GaugeMetricFamily("seaweedq_memory_budget_bytes", "The memory budget", value=budget.limit_bytes)
    yield GaugeMetricFamily(
        "seaweedq_journal_unreleased_bytes",
        "Journal commits still needed",
        value=broker.serving.log.journal.unreleased_bytes,
    )
    requests = CounterMetricFamily("seaweedq_store_requests", "Requests to the store", labels=["operation"])
    for operation, count in sorted(broker.environment.store.requests.items()):
        requests.add_metric([operation], count)
    yield requests
    yield GaugeMetricFamily("seaweedq_brokers", "Living brokers", value=len(broker.core.roster.brokers))
    yield GaugeMetricFamily(
        "seaweedq_leader", "1 where this broker leads", value=float(broker.joined.election.is_leader)
    )
    yield GaugeMetricFamily(
        "seaweedq_segments_owned",
        "Segments of this broker",
        value=len(broker.core.catalog.owned_by(broker.joined.membership.broker)),
    )
    yield GaugeMetricFamily("seaweedq_topics", "Topics", value=len(broker.core.catalog.names()))
    yield from _rates(broker)
    yield from _reshapes(broker)


def _rates(broker: Broker) -> Iterator[Metric]:
    """Of all segments together: with one of each, a cluster of 10,000 segments would have 80,000 series."""
    for name, unit, averages in zip(
        ("messages", "bytes"), ("Messages", "Bytes"), broker.serving.loads.totals(), strict=True
    ):
        rates = GaugeMetricFamily(
            f"seaweedq_{name}_per_second", f"{unit} that this broker's segments take", labels=["window_s"]
        )
        for window_s, average in zip(WINDOWS_S, averages, strict=True):
            rates.add_metric([f"{window_s:.0f}"], average)
        yield rates
    hot = len(broker.serving.leading.autoscaler.hot) if broker.joined.election.is_leader else 0
    yield GaugeMetricFamily("seaweedq_hot_segments", "At the leader: segments not split because of one key", value=hot)


def _reshapes(broker: Broker) -> Iterator[Metric]:
    reshaper, counters = broker.serving.reshaping.reshaper, broker.serving.reshaping.reshaper.counters
    yield GaugeMetricFamily("seaweedq_reshapes_under_way", "Intents being carried out", value=reshaper.under_way)
    done = CounterMetricFamily("seaweedq_reshapes", "Segments split, merged and rolled by this broker", labels=["kind"])
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
