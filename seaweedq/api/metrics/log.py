"""Metrics of the log, memory, the store and thread pools."""

from collections.abc import Iterator

from prometheus_client import Metric

from seaweedq.api.metrics.families import counter, gauge, histogram
from seaweedq.broker.broker import Broker

MONTH_S = 730 * 3600

MESSAGES = counter("seaweedq_published_messages_total", "Messages made durable")
BYTES = counter("seaweedq_published_bytes_total", "Bytes made durable, as stored in the journal")
COMMITS = counter(
    "seaweedq_commits_total",
    "Group commits made durable; each is one fsync or one object",
    watch="few messages per commit: grouping works badly",
)
COMMIT_DURATION = histogram(
    "seaweedq_commit_duration_seconds",
    "Time until a group commit is durable, or has failed",
    "outcome",
    watch="any `failed`; a 99th percentile of `ok` that is longer than a few fsyncs, or a few puts to the store",
)
FLUSHES = counter(
    "seaweedq_flushes_total",
    "Parquet files written",
    watch="no increase while `seaweedq_tail_bytes` grows: writes to the store fail",
)
FLUSH_DURATION = histogram(
    "seaweedq_flush_duration_seconds",
    "Time to encode and store a Parquet file, including retries",
    "outcome",
    watch="seconds: the store is slow",
)
UNRELEASED = gauge(
    "seaweedq_journal_unreleased_bytes",
    "Bytes of journal commits that are still needed",
    watch="above `journal_max_unreleased_bytes` for long",
)
PUTS = counter("seaweedq_journal_puts_total", "Puts by the object journal, including retries; 0 for a file journal")
USD = gauge(
    "seaweedq_journal_usd_per_month",
    "Monthly cost of the object journal's puts at the current rate, if put_usd_per_1000 is set",
    watch="more than you want to pay: [the costs](../operate/costs.md)",
)
MIRRORS = gauge(
    "seaweedq_journal_mirrors",
    "Brokers that hold this broker's commits in memory; 0 unless its journal is mirrored",
    watch="0 with `journal=mirrored`: publishes wait for the store",
)
HELD = gauge(
    "seaweedq_mirror_bytes",
    "Bytes held for the mirrored journals of other brokers",
    watch="at `mirror_memory_bytes`: other brokers drop this mirror",
)
TAILS = gauge("seaweedq_tails", "Segments with messages that are not in a Parquet file yet")
TAIL_BYTES = gauge(
    "seaweedq_tail_bytes",
    "Bytes of messages that are not in a Parquet file yet",
    watch="above half of the budget for long",
)
TAIL_AGE = gauge(
    "seaweedq_tail_oldest_seconds",
    "Age of the oldest message that is not in a Parquet file yet",
    watch="above `flush_max_age_s` plus 15 minutes: writes to the store fail",
)
LOG = (MESSAGES, BYTES, COMMITS, COMMIT_DURATION, UNRELEASED, PUTS, USD, MIRRORS, HELD)
FILES = (TAILS, TAIL_BYTES, TAIL_AGE, FLUSHES, FLUSH_DURATION)

REQUEST_BYTES = gauge("seaweedq_request_bytes", "Bytes held by requests and their responses")
INCOMPLETE = gauge(
    "seaweedq_incomplete_body_bytes",
    "Bytes held by request bodies that are still arriving",
    watch="at a quarter of the budget for long",
)
UNREAD = gauge(
    "seaweedq_unread_answer_bytes",
    "Bytes held by responses that clients have not read yet",
    watch="at a quarter of the budget for long",
)
RECOVERY = gauge(
    "seaweedq_recovery_bytes",
    "Bytes held while the journals of dead brokers are recovered",
    watch="above 0 for minutes: a recovery waits for the store",
)
CACHE = gauge("seaweedq_cache_bytes", "Bytes of cached row groups; the cache is dropped first if memory runs short")
BUDGET = gauge("seaweedq_memory_budget_bytes", "Memory budget, from the setting memory_budget_bytes")
POOL = gauge(
    "seaweedq_pool_waiting",
    "Calls waiting for a thread, by pool",
    "pool",
    watch="above 0 for long: the store or coordination hangs, or there are too few cores",
)
MEMORY = (REQUEST_BYTES, INCOMPLETE, UNREAD, RECOVERY, CACHE, BUDGET, POOL)

REQUESTS = counter(
    "seaweedq_store_requests_total",
    "Requests to the store, by operation. S3 bills create, list and receive as PUT, and read, size, "
    "age, open and range as GET; delete is free",
    "operation",
    watch="[the costs](../operate/costs.md)",
)
SENT = counter(
    "seaweedq_store_sent_bytes_total",
    "Bytes sent to the store, by operation, not counting payloads that clients upload themselves",
    "operation",
)
RECEIVED = counter(
    "seaweedq_store_received_bytes_total",
    "Bytes received from the store, by operation, not counting files opened in a local folder",
    "operation",
)
REQUEST_DURATION = histogram(
    "seaweedq_store_request_duration_seconds",
    "Duration of requests to the store, by operation. create puts an object; open reads the first part of a file",
    "operation",
    "outcome",
    watch="any `failed`; the 99th percentile of `create`: publishes wait for it if the journal is in the store",
)
STORE = (REQUESTS, SENT, RECEIVED, REQUEST_DURATION)


def log_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the journal and of Parquet files. Some stores charge for the object journal's puts."""
    log, clock = broker.log, broker.process.clock
    commit, flusher, puts = log.commit, log.flusher, log.journal.budget
    yield MESSAGES.of(commit.messages)
    yield BYTES.of(commit.size_bytes)
    yield COMMITS.of(commit.commits)
    yield COMMIT_DURATION.durations(((outcome,), one) for outcome, one in commit.durations.items())
    yield UNRELEASED.of(log.journal.unreleased_bytes)
    since_s = [segment.tail.oldest().at_s for segment in log.dirty if segment.tail and not segment.closed]
    yield TAILS.of(len(since_s))
    yield TAIL_BYTES.of(broker.budget.tails)
    yield TAIL_AGE.of(max(0.0, clock.monotonic_s() - min(since_s)) if since_s else 0.0)
    yield FLUSHES.of(flusher.flushes)
    yield FLUSH_DURATION.durations(((outcome,), one) for outcome, one in flusher.durations.items())
    yield PUTS.of(puts.puts if puts else 0)
    rate = puts.rate(clock.monotonic_s()) if puts else 0.0
    yield USD.of(rate * MONTH_S * broker.process.settings.put_usd_per_1000 / 1000)
    yield MIRRORS.of(len(log.journal.mirrors))
    yield HELD.of(broker.process.journals.holdings.size_bytes)


def store_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of requests to the store."""
    store = broker.process.store
    yield REQUESTS.by(store.requests)
    yield SENT.by(store.sent)
    yield RECEIVED.by(store.received)
    yield REQUEST_DURATION.durations(
        ((operation, outcome), one)
        for operation, outcomes in store.durations.items()
        for outcome, one in outcomes.items()
    )


def memory_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of memory and threads."""
    budget = broker.budget
    yield REQUEST_BYTES.of(budget.in_flight)
    yield INCOMPLETE.of(budget.incomplete)
    yield UNREAD.of(budget.answers)
    yield RECOVERY.of(budget.recovering)
    yield CACHE.of(budget.cached)
    yield BUDGET.of(budget.limit_bytes)
    yield POOL.by({pool.purpose: pool.waiting for pool in broker.process.pools.all})
