"""Metrics of requests, connections, refusals and the process. Also lists every metric family, in the order of
docs/reference/metrics.md."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import Metric, ProcessCollector

from seaweedq.api.connections.connections import Connections
from seaweedq.api.metrics import cluster, log
from seaweedq.api.metrics.families import Family, counter, gauge, histogram
from seaweedq.api.problems import Refusals
from seaweedq.api.request import Traffic
from seaweedq.broker.broker import Broker

VERSION = version("seaweedq")
READY = gauge("seaweedq_ready", "The value is 1 while the broker answers 200 at /readyz, and 0 otherwise")
RESTORED = gauge(
    "seaweedq_restored",
    "The value is 1 while this broker or a topic waits for a rebuild of coordination",
    "found",
    watch="If the value is 1, see [coordination was lost](../operate/operations.md#coordination-was-lost)",
)
BUILD = gauge("seaweedq_build_info", "The label contains the version of seaweedq", "version")
RESPONSES = counter(
    "seaweedq_http_responses_total",
    "Number of answers to requests from clients",
    "method",
    "route",
    "status",
    watch="Investigate a rise in the number of answers with a 5xx status",
)
REQUEST_DURATION = histogram(
    "seaweedq_request_duration_seconds",
    "Time from a request's headers to the end of its response. The outcome 'refused' means 4xx, and 'failed' means "
    "5xx. A pull has the outcome 'waited' if its messages arrived during the wait, and 'empty' if no message arrived",
    "operation",
    "outcome",
    watch="Investigate every request with the outcome `failed`, and a rise of the 99th percentile of `ok`",
)
GRPC_CALLS = counter(
    "seaweedq_grpc_calls_total",
    "Number of gRPC calls that have ended; seaweedq_http_responses_total also counts these calls",
    "method",
    "code",
    watch="Investigate a rise of `INTERNAL` or `UNAVAILABLE`",
)
CONNECTIONS = gauge(
    "seaweedq_connections",
    "Number of open connections",
    watch="Investigate a value near `max_connections`",
)
SPANS = counter(
    "seaweedq_spans_total",
    "Number of finished trace spans",
    "outcome",
    watch="If `dropped` rises, the collector at `otel_endpoint` does not answer, or is too slow",
)
REFUSALS = counter(
    "seaweedq_refusals_total",
    "Number of requests and connections that this broker refused",
    "reason",
    watch="If the value rises, see [the reasons](../operate/operations.md#strangers)",
)
THROTTLED = counter(
    "seaweedq_throttled_seconds_total",
    "Total time that this broker told rate-limited clients to wait",
    watch="If the value rises, clients exceed their limits",
)
AUDITED = counter("seaweedq_audit_events_total", "Number of audited changes and denied requests", "kind")
LOST = counter(
    "seaweedq_audit_lost_total",
    "Number of audit records that this broker could not publish to the topic seaweedq.audit",
    watch="If the value rises, the broker's log contains the missing records",
)
VERIFIED = counter("seaweedq_jwts_verified_total", "Number of JSON Web Tokens with a verified signature")
JWTS_REFUSED = counter(
    "seaweedq_jwts_refused_total",
    "Number of refused JSON Web Tokens",
    "reason",
    watch="If the value rises, see [the reasons](../operate/security.md#json-web-tokens)",
)
KEY_FETCHES = counter(
    "seaweedq_oidc_fetches_total",
    "Number of attempts to fetch the keys of oidc_issuer",
    "outcome",
    watch="If the outcome `failed` rises, the issuer does not answer",
)
KEY_AGE = gauge(
    "seaweedq_oidc_keys_age_seconds",
    "Time since the broker last fetched the keys of oidc_issuer",
    watch="If the value is near `jwks_max_age_s`, the issuer does not answer",
)
CPU = counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
RESIDENT = gauge(
    "process_resident_memory_bytes",
    "Resident memory size in bytes.",
    watch="Investigate a value near the machine's memory",
)
VIRTUAL = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")
STARTED = gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
OPEN_FILES = gauge(
    "process_open_fds",
    "Number of open file descriptors.",
    watch="If the value is near `process_max_fds`, the broker refuses connections",
)
MAX_FILES = gauge("process_max_fds", "Maximum number of open file descriptors.")

OF_REQUESTS = (READY, RESTORED, BUILD, RESPONSES, REQUEST_DURATION, GRPC_CALLS, CONNECTIONS, SPANS)
OF_STRANGERS = (REFUSALS, THROTTLED, AUDITED, LOST)
OF_ISSUER = (VERIFIED, JWTS_REFUSED, KEY_FETCHES, KEY_AGE)
OF_PROCESS: tuple[Family, ...] = (CPU, RESIDENT, VIRTUAL, STARTED, OPEN_FILES, MAX_FILES)
OF_A_READY_BROKER = (
    log.log_metrics,
    log.store_metrics,
    log.cache_metrics,
    log.memory_metrics,
    cluster.subscription_metrics,
    cluster.cluster_metrics,
    cluster.journal_metrics,
    cluster.suspicion_metrics,
    cluster.load_metrics,
    cluster.reshape_metrics,
    cluster.file_work_metrics,
    cluster.retention_metrics,
    cluster.snapshot_metrics,
)


GROUPS: Mapping[str, Sequence[Family]] = {
    "Requests": OF_REQUESTS,
    "Strangers, limits and the audit": OF_STRANGERS,
    "JSON Web Tokens (with `oidc_issuer`)": OF_ISSUER,
    "The journal": log.LOG,
    "Unflushed messages and files": log.FILES,
    "The store": log.STORE,
    "The cache on disk": log.DISK_CACHES,
    "Memory and threads": log.MEMORY,
    "Subscriptions": cluster.SUBSCRIPTIONS,
    "The cluster": cluster.CLUSTER,
    "Dead brokers": (*cluster.JOURNALS, *cluster.SUSPICION),
    "Load": cluster.LOAD,
    "Segments that split and merge": cluster.RESHAPES,
    "Imports and writes": cluster.FILE_WORK,
    "Retention": cluster.RETENTION,
    "Snapshots of coordination": cluster.SNAPSHOT,
    "The process": OF_PROCESS,
}


def metrics_of(
    broker: Broker,
    traffic: Traffic,
    grpc_calls: Mapping[tuple[str, str], int],
    connections: Connections,
    refusals: Refusals,
) -> Iterator[Metric]:
    """Yields all metrics of a broker. A broker that is not ready has only a few metrics."""
    yield READY.of(broker.readiness.can_take_work)
    yield RESTORED.by(dict.fromkeys(broker.restored, 1))
    yield BUILD.by({VERSION: 1})
    answered = traffic.responses.items()
    yield RESPONSES.each(((method, route, str(status)), count) for (method, route, status), count in answered)
    yield REQUEST_DURATION.durations(
        ((operation, outcome), one)
        for operation, outcomes in traffic.durations.items()
        for outcome, one in outcomes.items()
    )
    yield GRPC_CALLS.each(grpc_calls.items())
    yield CONNECTIONS.of(len(connections))
    yield REFUSALS.by(refusals.counts)
    yield THROTTLED.of(refusals.throttled_s)
    yield AUDITED.by(broker.audit.counts)
    yield LOST.of(broker.audit.lost)
    jwts = broker.callers.jwts
    yield VERIFIED.of(jwts.verified if jwts else 0)
    yield JWTS_REFUSED.by(jwts.refused if jwts else {})
    yield KEY_FETCHES.by(jwts.keys.fetches if jwts else {})
    age_s = jwts.keys.age_s if jwts else None
    yield KEY_AGE.each([] if age_s is None else [((), age_s)])
    traces = broker.process.traces
    yield SPANS.by(traces.counts if traces else {})
    if broker.readiness.ready:
        for metrics in OF_A_READY_BROKER:
            yield from metrics(broker)
        for service in broker.services:
            yield from service.metrics()
    # Those that Prometheus' libraries have for each process; there are none but on Linux.
    by_name = {family.name: family for family in OF_PROCESS}
    samples = (sample for found in ProcessCollector(registry=None).collect() for sample in found.samples)
    yield from (by_name[one.name].of(one.value) for one in samples if one.name in by_name)
