"""Metrics of the log, of memory, of the store and of the pools of threads."""

from collections.abc import Iterator

from prometheus_client import Metric

from seaweedq.api.metrics.families import counter, gauge, histogram
from seaweedq.broker.broker import Broker

MONTH_S = 730 * 3600

MESSAGES = counter("seaweedq_published_messages_total", "Messages made durable")
BYTES = counter("seaweedq_published_bytes_total", "Bytes made durable, as they are in the journal")
COMMITS = counter(
    "seaweedq_commits_total",
    "Group commits made durable, each one fsync or one object",
    watch="messages per commit show how well they are grouped",
)
COMMIT_DURATION = histogram(
    "seaweedq_commit_duration_seconds",
    "Time from the putting together of a group commit until it is durable, or has failed",
    "outcome",
    watch="any `failed`; a 99th percentile of `ok` over some fsyncs, or puts of the store",
)
FLUSHES = counter(
    "seaweedq_flushes_total",
    "Parquet files written",
    watch="no increase while `seaweedq_tail_bytes` grows: the store does not work",
)
FLUSH_DURATION = histogram(
    "seaweedq_flush_duration_seconds",
    "Time from the encoding of a Parquet file until the store has it, all tries together",
    "outcome",
    watch="seconds: the store is slow",
)
UNRELEASED = gauge(
    "seaweedq_journal_unreleased_bytes",
    "Bytes of journal commits that are still needed",
    watch="over `journal_max_unreleased_bytes` for long",
)
PUTS = counter("seaweedq_journal_puts_total", "Puts of the object journal, repeated ones too; 0 for other journals")
USD = gauge(
    "seaweedq_journal_usd_per_month",
    "Cost of these puts in a month at the present rate, with put_usd_per_1000 set",
    watch="more than you want to pay: [the costs](../operate/costs.md)",
)
TAILS = gauge("seaweedq_tails", "Segments with messages that are durable in the journal, and not in Parquet yet")
TAIL_BYTES = gauge(
    "seaweedq_tail_bytes",
    "Bytes that are durable in the journal, and not in Parquet yet",
    watch="above half of the budget for long",
)
TAIL_AGE = gauge(
    "seaweedq_tail_oldest_seconds",
    "How long the oldest of these messages has been durable: by so much Parquet is behind",
    watch="over `flush_max_age_s` and 15 minutes: the store does not work",
)
LOG = (MESSAGES, BYTES, COMMITS, COMMIT_DURATION, UNRELEASED, PUTS, USD)
FILES = (TAILS, TAIL_BYTES, TAIL_AGE, FLUSHES, FLUSH_DURATION)

REQUEST_BYTES = gauge("seaweedq_request_bytes", "Bytes that requests in flight and their answers hold")
INCOMPLETE = gauge(
    "seaweedq_incomplete_body_bytes",
    "Those of them that bodies hold which are still coming",
    watch="at a quarter of the budget for long",
)
UNREAD = gauge(
    "seaweedq_unread_answer_bytes",
    "Those of them that answers hold which clients have not taken yet",
    watch="at a quarter of the budget for long",
)
RECOVERY = gauge(
    "seaweedq_recovery_bytes",
    "Bytes that recoveries of dead brokers' journals hold",
    watch="over 0 for minutes: a recovery waits for the store",
)
CACHE = gauge("seaweedq_cache_bytes", "Decoded row groups, which give way to all else")
BUDGET = gauge("seaweedq_memory_budget_bytes", "The memory budget, memory_budget_bytes")
POOL = gauge(
    "seaweedq_pool_waiting",
    "Calls that wait for a thread of a pool: store reads, store writes, payloads, compute, coordination",
    "pool",
    watch="over 0 for long: the store hangs, or coordination, or the machine has too few cores",
)
MEMORY = (REQUEST_BYTES, INCOMPLETE, UNREAD, RECOVERY, CACHE, BUDGET, POOL)

REQUESTS = counter(
    "seaweedq_store_requests_total",
    "Requests to the store, by operation: S3 charges for create, list and receive as PUT, for read, size, age, open and"
    " range as GET, and not for delete",
    "operation",
    watch="[the costs](../operate/costs.md)",
)
SENT = counter(
    "seaweedq_store_sent_bytes_total",
    "Bytes of objects that this broker has sent to the store, by operation; payloads that clients put there themselves"
    " are not in it",
    "operation",
)
RECEIVED = counter(
    "seaweedq_store_received_bytes_total",
    "Bytes of objects that this broker has got from the store, by operation; files that it opens in a folder are not"
    " in it",
    "operation",
)
REQUEST_DURATION = histogram(
    "seaweedq_store_request_duration_seconds",
    "Time from a request to the store until its answer, by operation; create is a put, open a file's first part",
    "operation",
    "outcome",
    watch="any `failed`; the 99th percentile of `create`: publishes to a journal on the store wait for it",
)
STORE = (REQUESTS, SENT, RECEIVED, REQUEST_DURATION)


def log_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the journal, and of Parquet files. Some stores charge for an object journal's puts."""
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
    """Yields metrics of memory and of threads."""
    budget = broker.budget
    yield REQUEST_BYTES.of(budget.in_flight)
    yield INCOMPLETE.of(budget.incomplete)
    yield UNREAD.of(budget.answers)
    yield RECOVERY.of(budget.recovering)
    yield CACHE.of(budget.cached)
    yield BUDGET.of(budget.limit_bytes)
    yield POOL.by({pool.purpose: pool.waiting for pool in broker.process.pools.all})
