"""Metrics of load, of splits, merges and rolls, and of retention, of all segments together: per segment, 10,000
segments would have 80,000 series."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric

from seaweedq.api.metrics.families import counter, gauge, histogram
from seaweedq.balancer.load import WINDOWS_S
from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape import KINDS, Reshaper
from seaweedq.broker.retention import REASONS, Retention

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
LOAD = (MESSAGES, BYTES, HOT)
RESHAPES = (DONE, UNDER_WAY, PAUSE, WITHHELD)
RETENTION = (HELD, FILES, PAYLOADS)


@dataclass(frozen=True)
class LoadMetrics:
    """Metrics of load."""

    broker: Broker

    def metrics(self) -> Iterator[Metric]:
        for family, averages in zip((MESSAGES, BYTES), self.broker.load.loads.totals(), strict=True):
            windows = zip(WINDOWS_S, averages, strict=True)
            yield family.by({f"{window_s:.0f}": average for window_s, average in windows})
        autoscaler = self.broker.leadership.autoscaler
        yield HOT.of(len(autoscaler.hot) if self.broker.context.election.is_leader else 0)
        yield WITHHELD.of(autoscaler.withheld)


@dataclass(frozen=True)
class ReshapeMetrics:
    """Metrics of splits, merges and rolls."""

    reshaper: Reshaper

    def metrics(self) -> Iterator[Metric]:
        counters = self.reshaper.counters
        yield UNDER_WAY.of(self.reshaper.under_way)
        yield DONE.by({kind: counters.done[kind] for kind in KINDS})
        yield PAUSE.durations([((), counters.pauses)])


@dataclass(frozen=True)
class RetentionMetrics:
    """Metrics of retention, which works at the leader."""

    retention: Retention

    def metrics(self) -> Iterator[Metric]:
        rounds = self.retention.rounds
        yield HELD.by({reason: rounds.leads and rounds.held == reason for reason in REASONS})
        yield FILES.of(self.retention.files)
        yield PAYLOADS.of(self.retention.payloads.deleted)
