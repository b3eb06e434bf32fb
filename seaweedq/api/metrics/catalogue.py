"""Every family of metrics, in the order of docs/metrics.md."""

from collections.abc import Mapping, Sequence

from seaweedq.api.metrics import cluster, log, requests, segments, subscriptions
from seaweedq.api.metrics.families import Family

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
