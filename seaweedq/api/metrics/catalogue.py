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
READY = gauge("seaweedq_ready", "1 while /readyz answers 200", watch="0")
RESTORED = gauge(
    "seaweedq_restored",
    "1 for each sign of lost or restored coordination, while this broker or a topic waits for a rebuild",
    "found",
    watch="any: [what to do](../operate/operations.md#coordination-was-lost)",
)
BUILD = gauge("seaweedq_build_info", "Always 1; the label has the program's version", "version")
RESPONSES = counter(
    "seaweedq_http_responses_total",
    "Answered requests, by documented path and status. Only the broker that received the request from the client "
    "counts it; a stream counts when it ends",
    "method",
    "route",
    "status",
    watch="a rise of 5xx",
)
REQUEST_DURATION = histogram(
    "seaweedq_request_duration_seconds",
    "Time from a request's headers to the end of its response, for publish, pull, ack, nack, extend and fetch. "
    "Outcome refused means 4xx, failed means 5xx. A pull is ok if messages were ready, waited if they arrived "
    "during the wait, and empty if none arrived",
    "operation",
    "outcome",
    watch="`failed`; the 99th percentile of `ok`",
)
CONNECTIONS = gauge("seaweedq_connections", "Connections to this broker", watch="near `max_connections`")
REFUSALS = counter(
    "seaweedq_refusals_total",
    "Refused requests and connections from unknown callers, by reason",
    "reason",
    watch="a rise: [the reasons](../operate/operations.md#strangers)",
)
THROTTLED = counter(
    "seaweedq_throttled_seconds_total",
    "Total time that rate-limited requests were told to wait, in seconds",
    watch="a rise: raise the limit, or talk to the client",
)
AUDITED = counter(
    "seaweedq_audit_events_total",
    "Audit events: changes and denials",
    "kind",
    watch="[the audit](../operate/security.md#the-audit)",
)
LOST = counter(
    "seaweedq_audit_lost_total",
    "Audit events missing from the topic seaweedq.audit",
    watch="any: the log has the events and the reason",
)
CPU = counter(
    "process_cpu_seconds_total",
    "Total user and system CPU time spent in seconds.",
    watch="near 1 per second per process",
)
RESIDENT = gauge(
    "process_resident_memory_bytes", "Resident memory size in bytes.", watch="near the memory of the machine"
)
VIRTUAL = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")
STARTED = gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
OPEN_FILES = gauge(
    "process_open_fds", "Number of open file descriptors.", watch="near `process_max_fds`: connections are refused"
)
MAX_FILES = gauge("process_max_fds", "Maximum number of open file descriptors.")

OF_REQUESTS = (READY, RESTORED, BUILD, RESPONSES, REQUEST_DURATION, CONNECTIONS)
OF_STRANGERS = (REFUSALS, THROTTLED, AUDITED, LOST)
OF_PROCESS: tuple[Family, ...] = (CPU, RESIDENT, VIRTUAL, STARTED, OPEN_FILES, MAX_FILES)
OF_A_READY_BROKER = (
    log.log_metrics,
    log.store_metrics,
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
    "The journal": log.LOG,
    "Tails and files": log.FILES,
    "The store": log.STORE,
    "Memory and threads": log.MEMORY,
    "Subscriptions": cluster.SUBSCRIPTIONS,
    "The cluster": cluster.CLUSTER,
    "Journals of dead brokers": cluster.JOURNALS,
    "Brokers that seem dead": cluster.SUSPICION,
    "Load": cluster.LOAD,
    "Segments that split and merge": cluster.RESHAPES,
    "Imports and writes": cluster.FILE_WORK,
    "Retention": cluster.RETENTION,
    "Snapshots of coordination": cluster.SNAPSHOT,
    "The process": OF_PROCESS,
}


def metrics_of(broker: Broker, traffic: Traffic, connections: Connections, refusals: Refusals) -> Iterator[Metric]:
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
    yield CONNECTIONS.of(len(connections))
    yield REFUSALS.by(refusals.counts)
    yield THROTTLED.of(refusals.throttled_s)
    yield AUDITED.by(broker.audit.counts)
    yield LOST.of(broker.audit.lost)
    if broker.readiness.ready:
        for metrics in OF_A_READY_BROKER:
            yield from metrics(broker)
        for service in broker.services:
            yield from service.metrics()
    # Those that Prometheus' libraries have for each process; there are none but on Linux.
    by_name = {family.name: family for family in OF_PROCESS}
    samples = (sample for found in ProcessCollector(registry=None).collect() for sample in found.samples)
    yield from (by_name[one.name].of(one.value) for one in samples if one.name in by_name)
