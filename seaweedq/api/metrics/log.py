"""Metrics of the log, memory, the store and thread pools."""

from collections.abc import Iterator

from prometheus_client import Metric

from seaweedq.api.metrics.families import counter, gauge, histogram
from seaweedq.broker.broker import Broker
from seaweedq.storage.cache_plan import BLOCK_BYTES

MONTH_S = 730 * 3600

MESSAGES = counter("seaweedq_published_messages_total", "Number of messages that this broker has made durable")
BYTES = counter(
    "seaweedq_published_bytes_total",
    "Size, in the journal, of all messages that this broker has made durable",
)
COMMITS = counter(
    "seaweedq_commits_total",
    "Number of durable group commits to the journal; each commit is one fsync or one object",
)
COMMIT_DURATION = histogram(
    "seaweedq_commit_duration_seconds",
    "Time until a group commit to the journal is durable, or has failed",
    "outcome",
    watch="Investigate every commit with the outcome `failed`, and a 99th percentile of `ok` above the duration of a "
    "few fsyncs or puts",
)
FLUSHES = counter("seaweedq_flushes_total", "Number of Parquet files that this broker wrote")
FLUSH_DURATION = histogram(
    "seaweedq_flush_duration_seconds",
    "Time to encode and store a Parquet file, including retries",
    "outcome",
    watch="A duration of several seconds means that the store is slow",
)
UNRELEASED = gauge(
    "seaweedq_journal_unreleased_bytes",
    "Size of the part of the journal that a recovery would need",
    watch="Investigate a value that stays above `journal_max_unreleased_bytes`",
)
PUTS = counter("seaweedq_journal_puts_total", "Number of puts to the store for the object journal, including retries")
USD = gauge(
    "seaweedq_journal_usd_per_month",
    "Cost of the object journal's puts, in US dollars per month at the current rate, if put_usd_per_1000 is set",
)
MIRRORS = gauge(
    "seaweedq_journal_mirrors",
    "Number of brokers that hold the commits of this broker's mirrored journal in memory",
    watch="If the value is 0, publishes to a mirrored journal wait for the store",
)
HELD = gauge(
    "seaweedq_mirror_bytes",
    "Memory that this broker uses for commits of other brokers' mirrored journals",
    watch="Investigate a value near `mirror_memory_bytes`",
)
TAILS = gauge("seaweedq_tails", "Number of segments with unflushed messages")
TAIL_BYTES = gauge(
    "seaweedq_tail_bytes",
    "Size of the unflushed messages",
    watch="Investigate a value that stays above half of `memory_budget_bytes`",
)
TAIL_AGE = gauge(
    "seaweedq_tail_oldest_seconds",
    "Age of the oldest unflushed message",
    watch="With the default flush settings, a value above 20 minutes means that writes to the store fail",
)
LOG = (MESSAGES, BYTES, COMMITS, COMMIT_DURATION, UNRELEASED, PUTS, USD, MIRRORS, HELD)
FILES = (TAILS, TAIL_BYTES, TAIL_AGE, FLUSHES, FLUSH_DURATION)

REQUEST_BYTES = gauge("seaweedq_request_bytes", "Memory that requests and their responses use")
INCOMPLETE = gauge(
    "seaweedq_incomplete_body_bytes",
    "Memory that request bodies use before they have arrived completely",
    watch="Investigate a value near a quarter of `memory_budget_bytes`",
)
UNREAD = gauge(
    "seaweedq_unread_answer_bytes",
    "Memory that responses use until clients have read them",
    watch="Investigate a value near a quarter of `memory_budget_bytes`",
)
RECOVERY = gauge(
    "seaweedq_recovery_bytes",
    "Memory that recoveries of dead brokers' journals use",
    watch="If the value stays above 0 for minutes, the store is slow",
)
CACHE = gauge("seaweedq_memory_cache_bytes", "Memory that the cache of decoded row groups uses")
BUDGET = gauge("seaweedq_memory_budget_bytes", "Value of the setting memory_budget_bytes")
POOL = gauge(
    "seaweedq_pool_waiting",
    "Number of calls that wait for a free thread in the thread pool that the label names",
    "pool",
    watch="If the value stays above 0, the machine has too few cores",
)
MEMORY = (REQUEST_BYTES, INCOMPLETE, UNREAD, RECOVERY, CACHE, BUDGET, POOL)

REQUESTS = counter(
    "seaweedq_store_requests_total",
    "Number of requests to the store. S3 bills the operations create, list and receive as PUT requests, and read, "
    "size, age, open and range as GET requests",
    "operation",
)
SENT = counter("seaweedq_store_sent_bytes_total", "Number of bytes that this broker sent to the store", "operation")
RECEIVED = counter(
    "seaweedq_store_received_bytes_total",
    "Number of bytes that this broker received from the store",
    "operation",
)
REQUEST_DURATION = histogram(
    "seaweedq_store_request_duration_seconds",
    "Duration of requests to the store",
    "operation",
    "outcome",
    watch="Investigate every request with the outcome `failed`. If the journal is in the store, also investigate slow "
    "`create` requests",
)
STORE = (REQUESTS, SENT, RECEIVED, REQUEST_DURATION)

DISK_CACHE = gauge("seaweedq_cache_bytes", "Size of the cache in cache_dir")
DISK_CACHE_LIMIT = gauge(
    "seaweedq_cache_limit_bytes",
    "Maximum size of the cache in cache_dir",
    watch="If the value is below `cache_bytes`, the disk is full or broken",
)
DISK_CACHE_READS = counter(
    "seaweedq_cache_reads_total",
    "Number of reads through the cache in cache_dir. A hit sends no request to the store; a shared read uses the "
    "answer to a request that another read has already sent",
    "outcome",
    watch="If misses are frequent, `cache_bytes` is too small",
)
DISK_CACHE_SAVED = counter("seaweedq_cache_hit_bytes_total", "Number of bytes read from the cache in cache_dir")
DISK_CACHE_EVICTED = counter(
    "seaweedq_cache_evictions_total",
    "Number of parts of files that the cache in cache_dir removed to make room for other parts",
)
DISK_CACHE_FAILURES = counter(
    "seaweedq_cache_failures_total",
    "Number of failed reads and writes on the disk of cache_dir",
    "kind",
    watch="If the value rises, the disk is full or broken",
)
DISK_CACHES = (
    DISK_CACHE,
    DISK_CACHE_LIMIT,
    DISK_CACHE_READS,
    DISK_CACHE_SAVED,
    DISK_CACHE_EVICTED,
    DISK_CACHE_FAILURES,
)


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


def cache_metrics(broker: Broker) -> Iterator[Metric]:
    """Yields metrics of the cache on disk."""
    cache = broker.process.cache
    yield DISK_CACHE.of(cache.plan.held_blocks * BLOCK_BYTES if cache else 0)
    yield DISK_CACHE_LIMIT.of(cache.plan.limit_blocks * BLOCK_BYTES if cache else 0)
    yield DISK_CACHE_READS.by(cache.uses if cache else {})
    yield DISK_CACHE_SAVED.of(cache.hit_bytes if cache else 0)
    yield DISK_CACHE_EVICTED.of(cache.plan.evicted if cache else 0)
    yield DISK_CACHE_FAILURES.by(cache.failures if cache else {})


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
