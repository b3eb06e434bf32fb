"""The async client: names and signatures; `calls` implements the calls. The sync one is generated from it."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from weakref import WeakSet

import httpx

from seaweedq.client.aio.producer import AsyncProducer
from seaweedq.client.aio.subscriber import AsyncAcker, AsyncDeliveries
from seaweedq.client.aio.transport import AsyncTransport
from seaweedq.client.aio.work import AsyncWork
from seaweedq.client.core import calls, uploading
from seaweedq.client.core.attempts import Brokers, OnRetry, Patience, parse_urls, patiently, unhurried
from seaweedq.client.core.batching import MIB, Limits
from seaweedq.client.core.calls import (
    Bytes,
    Compatibility,
    Filter,
    Flush,
    Lines,
    Retention,
    Scaling,
    Seconds,
    Start,
    TopicFile,
    TopicFormat,
    given_fields,
    topic_files,
)
from seaweedq.client.core.delivery import Offload, Route, type_of
from seaweedq.client.core.effects import ARROW, JSON, Steps
from seaweedq.client.core.held_messages import Worked
from seaweedq.client.core.message import AsyncMessage, Batch, Make, Page
from seaweedq.client.core.payload_reading import payload
from seaweedq.client.core.pulling import Mode, Pulling, PullOptions, check_pull_options, check_work
from seaweedq.client.core.uploading import (
    ANY_BYTES,
    Format,
    Imported,
    Rows,
    Upload,
    WriteState,
    choose_format,
    import_rows,
    write_rows,
)
from seaweedq.client.core.wire import Published, WireMessage
from seaweedq.client.files import Progress, Source
from seaweedq.client.http import DEFAULT_URL, Credentials, check_options
from seaweedq.clock import Clock, Ids, SystemClock, SystemIds
from seaweedq.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

    from seaweedq.client.core.calls import Expired
    from seaweedq.client.core.table import Bounds

T = TypeVar("T")


class AsyncClient:
    """A client that talks to a cluster through any of its brokers. For one event loop.

    `url` is the URL of one broker or of several, separated by commas or given as a sequence. By default, `url` is the
    value of SEAWEEDQ_URL or, without it, http://127.0.0.1:8080. The client tries the brokers in the given order. After
    a lost connection or an answer of 502, 503 or 504, the client sends the request to the next broker, provided that
    the request is safe to repeat or was never sent. `timeout_s` is the timeout for one answer; a subscription that can
    reach no broker also retries for this long. The client sends `headers` with every request. The caller's token is
    `token` or the content of `token_file`, which the client rereads when it changes; the defaults are SEAWEEDQ_TOKEN
    and SEAWEEDQ_TOKEN_FILE. `ca_file` is a PEM file with the certificate authorities to trust for https; the default is
    SEAWEEDQ_CA_FILE or, without it, the system's authorities. Every method raises the broker's errors
    (`seaweedq.errors`), and ConnectionFailed if no broker answers. If all brokers have failed, only producers and
    subscriptions retry, because their retries never publish anything twice. Before each retry, the client calls
    `on_retry` with the error and the number of seconds for which the client will keep trying. Once a broker answers
    again, the client calls `on_retry` with None.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float = 30,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        on_retry: OnRetry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._clock, self._ids = clock or SystemClock(), ids or SystemIds()
        self._urls = parse_urls(os.environ.get("SEAWEEDQ_URL") or DEFAULT_URL if url is None else url)
        check_options(timeout_s, headers)
        self._transport = AsyncTransport(
            Brokers(self._urls, self._clock.monotonic_s),
            timeout_s,
            headers,
            transport,
            Credentials(token, token_file, ca_file),
        )
        self._run = self._transport.run
        self._timeout_s, self._on_retry = timeout_s, on_retry
        self._producers: set[AsyncProducer] = set()
        self._ackers: WeakSet[AsyncAcker] = WeakSet()
        self._works: set[AsyncWork] = set()

    def __repr__(self) -> str:
        return f"AsyncClient({','.join(self._urls)!r})"

    async def create_topic(
        self,
        name: str,
        *,
        format: TopicFormat | None = None,
        schema: Mapping[str, Any] | None = None,
        key_field: str | None = None,
        initial_segments: int | None = None,
        ndjson: Lines | None = None,
        max_payload_bytes: Bytes | None = None,
        scaling: Scaling | None = None,
        flush: Flush | None = None,
        retention: Retention | None = None,
        limits: Mapping[str, float | None] | None = None,
        compatibility: Compatibility | None = None,
    ) -> dict[str, Any]:
        """Creates a topic, or checks that an existing topic matches the given fields. Returns the same as `topic`.

        Durations and sizes may have units: `retention={"max_age_s": "7d"}`. Raises TopicConflict, InvalidRequest.
        """
        config = given_fields(
            format=format,
            schema=schema,
            key_field=key_field,
            initial_segments=initial_segments,
            ndjson=ndjson,
            max_payload_bytes=max_payload_bytes,
            scaling=scaling,
            flush=flush,
            retention=retention,
            limits=limits,
            compatibility=compatibility,
        )
        return await self._run(calls.call("PUT", calls.topic_path(name), config))

    async def topic(self, name: str) -> dict[str, Any]:
        """Returns a topic's configuration, counts, sizes in bytes and store path. Raises TopicNotFound."""
        return await self._run(calls.call("GET", calls.topic_path(name)))

    async def topics(self) -> list[dict[str, Any]]:
        """Returns all topics."""
        return await self._run(calls.pages("/v1/topics", "topics"))

    async def unreadable_topics(self) -> list[str]:
        """Returns the names of the topics that `topics` omits because only a newer broker can read their records."""
        return await self._run(calls.pages("/v1/topics", "unreadable"))

    async def update_topic(self, name: str, **config: Any) -> dict[str, Any]:
        """Changes the given fields. Raises TopicNotFound, InvalidRequest."""
        return await self._run(calls.call("PATCH", calls.topic_path(name), config))

    async def schemas(self, name: str) -> list[int]:
        """Returns the ids of all versions of a typed topic's schema, the newest last. Raises TopicNotFound."""
        return await self._run(calls.schemas(name))

    async def schema(self, name: str, schema_id: int | None = None) -> dict[str, Any]:
        """Returns a version of a typed topic's schema, by default the newest. Raises TopicNotFound, SchemaNotFound."""
        return await self._run(calls.schema(name, schema_id))

    async def evolve_schema(
        self, name: str, schema: Mapping[str, Any], *, if_schema_id: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Changes a typed topic's schema by adding the given schema as its next version. Returns the `schema_id` of the
        new version, its `schema` with an id for each field, and `warnings`, which say how each renamed or dropped field
        affects publishers and readers of files. Nothing changes if you repeat the call, or set `dry_run`.

        Raises SchemaIncompatible (with all `differences`; with `schema_id`, the newest version, if `if_schema_id` is
        that of another one), TopicNotFound, InvalidRequest.
        """
        return await self._run(calls.evolve_schema(name, schema, if_schema_id, dry_run))

    async def preview_retention(self, name: str, **retention: Any) -> dict[str, int]:
        """Returns the number of files, bytes, messages and unread messages that the given retention would delete now.
        Changes nothing.

        Raises TopicNotFound, InvalidRequest.
        """
        return await self._run(calls.preview_retention(name, retention))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its data. Raises TopicNotFound."""
        await self._run(calls.call("DELETE", calls.topic_path(name)))

    async def flush(self, name: str) -> Any:
        """Returns once all messages that were acknowledged before the call are in Parquet files."""
        return await self._run(calls.flush(name))

    async def files(self, name: str, segment: int | None = None) -> list[TopicFile]:
        """Returns the Parquet files that contain rows of a topic, or of one of its segments. The files of a segment are
        sorted by offset.

        The broker lists the files without opening them. Raises TopicNotFound.
        """
        return await self._run(topic_files(name, segment))

    async def segments(self, name: str) -> list[dict[str, Any]]:
        """Returns a topic's segments with their fields, such as id, low, high, state, successors, and start and end
        offset."""
        return await self._run(calls.segments(name))

    async def segment(self, name: str, number: int) -> dict[str, Any]:
        """Returns one segment of a topic, even if retention has removed the segment, with its fields, such as state,
        successors, and start and end offset. Raises SegmentNotFound."""
        return await self._run(calls.call("GET", f"{calls.topic_path(name)}/segments/{number}"))

    async def history(
        self, name: str, since: datetime | None = None, until: datetime | None = None, cells: int | None = None
    ) -> dict[str, Any]:
        """Returns the load in the last hour for each range of key hashes. Each of the `cells` covers a range of time
        and of keys; if there are too many cells, the broker combines some. `from` and `until` delimit the time for
        which the leader has recorded the load. Times need a UTC offset. Raises TopicNotFound, InvalidRequest."""
        return await self._run(calls.history(name, since, until, cells))

    async def publish(
        self,
        topic: str,
        messages: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        schema_id: int | None = None,
    ) -> Published:
        """Publishes messages `{"value", "key"?, "headers"?, "timestamp"?, "expires_in_s"?}` in one request.

        Instead of a `value`, a message may have `"reference": {"upload_id": ...}`, which refers to an upload. On a
        typed topic, `schema_id` is the schema version that the messages have; by default, brokers assume the newest
        version. Raises SchemaMismatch if the version does not exist, or if a message has a value in a field that was
        dropped since.

        If a rate limit refuses the request, nothing is published; the client waits and sends the request again, for at
        most the client's timeout. After an error that leaves the outcome open (ConnectionFailed), the caller must
        decide whether to publish again. A producer avoids such errors."""
        return await self._run(unhurried(calls.publish(topic, messages, schema_id), self._patience()))

    async def upload(
        self,
        topic: str,
        what: str | os.PathLike[str] | bytes | BinaryIO,
        content_type: str | None = None,
        progress: Progress | None = None,
        upload_id: str | None = None,
        write: str | None = None,
    ) -> str:
        """Uploads bytes or a file (a path, or a seekable binary file). Returns the id of the upload.

        Until the upload expires, you can publish it as a message with `publish(topic, {"reference": {"upload_id":
        id}})`. With `upload_id`, the call resumes an earlier upload, and sends only the missing bytes. Without
        `upload_id`, the client aborts an upload that fails or is interrupted. With `write="{writer}/{number}"`, only
        the named write may use the upload. Raises UploadMismatch, UploadExpired, UploadNotFound, PayloadTooLarge,
        TooManyUploads, ConnectionFailed, OSError."""
        source = await asyncio.to_thread(Source.open, what)
        try:
            kind = content_type or (type_of(Path(what)) if isinstance(what, str | os.PathLike) else ANY_BYTES)
            upload = Upload(topic, source, kind, self._patience(), self._urls, progress, write)
            return await self._run(upload.run(upload_id))
        finally:
            source.close()

    async def import_file(
        self,
        topic: str,
        what: str | os.PathLike[str] | bytes | BinaryIO,
        format: Format | None = None,
        bare: bool = False,
        progress: Progress | None = None,
        rows: Rows | None = None,
    ) -> Imported:
        """Uploads a Parquet, NDJSON or Arrow file of any size, and publishes each of its rows as a message.

        Returns once all rows are durable. If any row is invalid, no row is published. By default, the path's suffix
        decides the `format`. With `bare`, each line of NDJSON is only a value. During the upload, the client calls
        `progress(bytes, total)`; during the import, it calls `rows(rows, total)`. Raises the same errors as `upload`
        and `import_upload`."""
        kind = choose_format(what, format, bare)
        upload_id = await self.upload(topic, what, ANY_BYTES, progress)
        return await self.import_upload(topic, upload_id, kind, bare, rows)

    async def import_upload(
        self, topic: str, upload_id: str, format: Format, bare: bool = False, rows: Rows | None = None
    ) -> Imported:
        """Imports an existing upload, as `import_file` does. If the import was already requested, the call joins that
        import, and nothing is published twice.

        Raises InvalidMessages, InvalidImport, InvalidRequest (no row was published), UploadNotFound, UploadExpired,
        UploadConflict, ConnectionFailed. All errors of this method have the field `upload_id`."""
        steps = import_rows(topic, upload_id, format, bare, self._patience(), rows)
        return await self._run(steps)

    async def write(
        self,
        topic: str,
        writer: str,
        number: int,
        uploads: Sequence[str],
        format: Format = "parquet",
        bare: bool = False,
        drawn: bool = False,
        wait_s: float | None = None,
    ) -> WriteState:
        """Publishes the rows of many uploads exactly once for each pair of a writer and a number. The first call with a
        number decides which rows are published; later calls with this number get the same result, even if they name
        other uploads.

        Each upload must have been created for the same write (`upload` with `write`), and all uploads must have the
        same format. Returns once all rows are durable, or after `wait_s` seconds with the current state of the write;
        to wait longer, repeat the call. If any row of any file is invalid, no row is published. A writer's numbers must
        rise. Set `drawn` if the name of the writer is random: the topic then remembers the writer for one day instead
        of 30 days. Raises WriteOutOfOrder, TooManyWriters, InvalidMessages, InvalidImport, InvalidRequest,
        UploadNotFound, UploadExpired, UploadConflict, ConnectionFailed. All errors of this method have the fields
        `writer` and `number`."""
        steps = write_rows(topic, writer, number, uploads, format, bare, drawn, self._patience(), wait_s)
        return await self._run(steps)

    async def writes(self, topic: str) -> list[WriteState]:
        """Returns each writer's newest write to a topic, sorted by writer."""
        return await self._run(patiently(uploading.writes(topic), self._patience()))

    async def last_write(self, topic: str, writer: str) -> WriteState:
        """Returns a writer's newest write to a topic. Raises WriteNotFound."""
        return await self._run(patiently(uploading.last_write(topic, writer), self._patience()))

    async def fetch(
        self, topic: str, segment: int, offset: int, limit: int = 100, wait_s: float = 0
    ) -> Page[AsyncMessage]:
        """Returns at most `limit` messages of a segment, starting at `offset`. Waits up to `wait_s` seconds (at most
        30) for the first message.

        Raises OffsetOutOfRange if `offset` is beyond the segment's end.
        """
        return await self._run(calls.fetch(topic, segment, offset, limit, wait_s, self._message(topic)))

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 5,
        batch_messages: int = 10_000,
        batch_bytes: int = 2 * MIB,
        max_buffer_bytes: int = 64 * MIB,
        max_request_bytes: int = 16 * MIB,
        max_message_bytes: int = MIB,
        delivery_timeout_s: float = 120,
        schema_id: int | None = None,
    ) -> AsyncProducer:
        """Returns a producer for a topic. The producer sends batches, uses bounded memory, and retries without
        publishing anything twice.

        Use the producer in an `async with` statement. If several brokers own the topic's segments, the producer sends
        rows directly to the owner of their segment, and to all owners concurrently. `batching.Limits` explains the
        limits. The producer uploads values over `max_message_bytes`, and publishes them by reference. Set
        `max_message_bytes` to the broker's own setting; if the broker's limit is smaller, the producer learns it from
        the broker. A message fails if no broker accepts it within `delivery_timeout_s` of `send`. On a typed topic,
        `schema_id` is the schema version that all messages and tables have, as for `publish`.
        """
        limits = Limits(linger_ms, batch_messages, batch_bytes, max_buffer_bytes, max_request_bytes)
        patience = self._patience(delivery_timeout_s)
        offload = Offload(topic, patience, self._urls, max_message_bytes)
        route = Route(topic, patience, self._ids.nonce, self._urls, offload, schema_id)
        producer = AsyncProducer(route, limits, self._run, self._producers.discard)
        self._producers.add(producer)
        return producer

    async def read_table(
        self,
        topic: str,
        columns: Sequence[str] | None = None,
        live: bool = False,
        starting: "Bounds" = None,
        ending: "Bounds" = None,
        segments: Collection[int] | None = None,
        expired: "Expired" = "skip",
    ) -> "pa.Table":
        """Returns a topic's rows from its Parquet files, unsorted. With `live`, the result contains every acknowledged
        row exactly once.

        `starting` (inclusive) and `ending` (exclusive) are either offsets by segment or a datetime. A segment that
        `starting` omits is read from its start; a segment that `ending` omits is read to its end. A datetime means, in
        each segment, the offset of the first row whose `_timestamp` is at or after this datetime. `segments` excludes
        all other segments. The result omits rows that have expired, by the cluster's clock, at the time when the read
        is planned; `expired="keep"` includes expired rows. This machine must have access to the files. Each file is
        opened only when its rows are read. Raises ValueError for an unknown column, segment, offset or `expired`, and
        if `starting` is after `ending`.
        """
        with needs("arrow", "read_table"):
            from seaweedq.client.core.table import ReadOptions, read_table

        wanted = ReadOptions(columns, live, starting, ending, segments, expired)
        return await self._run(read_table(topic, wanted, self._patience()))

    async def read_batches(
        self,
        topic: str,
        columns: Sequence[str] | None = None,
        live: bool = False,
        starting: "Bounds" = None,
        ending: "Bounds" = None,
        segments: Collection[int] | None = None,
        expired: "Expired" = "skip",
    ) -> AsyncIterator["pa.RecordBatch"]:
        """Yields the same rows as `read_table` batch by batch, so that a topic can be larger than memory."""
        with needs("arrow", "read_batches"):
            from seaweedq.client.core.table import ReadOptions, plan_table

        read = await self._run(plan_table(topic, ReadOptions(columns, live, starting, ending, segments, expired)))
        batches = read.file_batches()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch
        for rows in read.tail:
            async for batch in self.read_segment(topic, rows.segment, rows.start, rows.end, "keep"):
                yield read.conform(batch)

    async def read_segment(
        self, topic: str, segment: int, start: int, end: int, expired: "Expired" = "skip"
    ) -> AsyncIterator["pa.RecordBatch"]:
        """Yields the rows of a segment from offset `start` up to `end`, in order, whether or not the rows are in files
        yet. The rows have the same columns as in `read_table`.

        Rows that have expired by the time when a broker returns them are left out; `expired="keep"` includes expired
        rows. If the segment's owner cannot be reached, waits up to the client's timeout. Raises OffsetOutOfRange if
        `start` is beyond the segment's end.
        """
        with needs("arrow", "read_segment"):
            from seaweedq.client.core.table import fetch_rows

        while start < end:
            patience = self._patience()
            batches, start = await self._run(fetch_rows(topic, segment, start, end, patience, expired))
            for batch in batches:
                yield batch

    def subscribe(
        self,
        topic: str,
        subscription: str,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int = 500,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> AsyncIterator[AsyncMessage]:
        """Iterates over the messages of a subscription. The iteration ends when no message has arrived for
        `idle_timeout_s`.

        Creates the subscription when the iteration begins, unless it exists. If you leave the iteration early, the
        client's `close` sends the last acks.

        Delivery is at least once. A message that is not acked within `ack_deadline_s` is redelivered. After a broker
        has restarted, it may also redeliver messages that were acked just before the restart.

        `start` is the position at which a new subscription begins: "latest", "earliest" or {"timestamp": ...}. `mode`
        is "ordered" (the default for a new subscription: each segment has one consumer at a time), "shared" (no order)
        or "keyed" (messages with the same key stay in order). `consumer` names this consumer; the default is a random
        name. In "ordered" mode, a consumer that restarts under the same name first receives the messages that were
        leased to it before. Two consumers must not use the same name. The other parameters are settings of the
        subscription; durations may have units.

        Raises SubscriptionConflict if the subscription exists, and its mode or settings differ from the given ones.
        `start` and `ack_deadline_s` apply only to a new subscription.
        """
        settings = given_fields(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = PullOptions(start, ack_deadline_s, mode, settings, max_messages, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        return self._deliveries(pulling, JSON, self._message(topic))

    def batches(
        self,
        topic: str,
        subscription: str,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int = 5000,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> AsyncIterator[Batch]:
        """Iterates over the messages of a subscription in batches. A batch contains the rows of one pull as a pyarrow
        table of at most `max_messages` rows (no more than 10,000) and 8 MiB. `batch.ack()` acks all rows of the batch.

        The parameters and guarantees are the same as for `subscribe`.
        """
        settings = given_fields(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = PullOptions(start, ack_deadline_s, mode, settings, max_messages, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        return self._deliveries(pulling, ARROW, Batch)

    async def work(
        self,
        topic: str,
        subscription: str,
        handler: Callable[[AsyncMessage], Any],
        workers: int = 8,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int | None = None,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_extension_s: float = 3600,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> Worked:
        """Handles the messages of a subscription with up to `workers` concurrent handlers. Returns the counts of
        handled messages when no message has arrived for `idle_timeout_s`, or when the client is closed.

        A message is acked when `handler(message)` returns. If the handler raises an exception, the message is nacked
        and redelivered after the subscription's backoff; if the handler raises `Reject`, the message becomes a dead
        letter. Messages in the same segment (`ordered`) or with the same key (`keyed`) are handled one at a time, in
        order. While a handler runs, the lease of its message is extended, for at most `max_extension_s` seconds (by
        default 3,600). At most `max_messages` messages wait for a handler, by default two for each worker; set a higher
        number if handlers are short. The other parameters are the same as for `subscribe`. Acks that arrive too late
        are logged, and counted as `unknown`. After an interrupt or a cancellation, the client gives back the messages
        that no handler has started, so that their leases end soon. Raises the same errors as `subscribe`, and the error
        of the first ack that failed."""
        most = check_work(handler, workers, max_messages, max_extension_s)
        settings = given_fields(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = PullOptions(start, ack_deadline_s, mode, settings, most, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        work = AsyncWork(pulling, handler, self._message(topic), self._run, workers, max_extension_s)
        self._works.add(work)
        try:
            return await work.run()
        finally:
            self._works.discard(work)

    async def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """Returns a subscription's configuration, and its lag for each segment. Raises SubscriptionNotFound."""
        return await self._run(calls.call("GET", calls.subscription_path(topic, name)))

    async def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Returns all subscriptions of a topic."""
        return await self._run(calls.pages(f"{calls.topic_path(topic)}/subscriptions", "subscriptions"))

    async def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        mode: Mode | None = None,
        start: Start | None = None,
        ack_deadline_s: Seconds | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> dict[str, Any]:
        """Creates a subscription, or checks that an existing subscription matches the given fields. Returns the same as
        `subscription`.

        Durations may have units: `backoff_s=["1s", "5m"]`. Raises SubscriptionConflict, InvalidRequest.
        """
        config = given_fields(
            mode=mode,
            start=start,
            ack_deadline_s=ack_deadline_s,
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        return await self._run(calls.call("PUT", calls.subscription_path(topic, name), config))

    async def update_subscription(self, topic: str, name: str, **config: Any) -> dict[str, Any]:
        """Changes the given fields. All fields except mode, start and filter can be changed. `paused=True` stops
        deliveries. Raises SubscriptionNotFound, InvalidRequest."""
        return await self._run(calls.call("PATCH", calls.subscription_path(topic, name), config))

    async def seek(self, topic: str, name: str, to: str | datetime | Mapping[str, Any]) -> dict[str, Any]:
        """Moves a subscription to another position. The move ends all leases, and messages after the new position are
        delivered again even if they were acked.

        `to` is "earliest", "latest", a message time (with a time zone), or {"offsets": {segment: offset}}, which moves
        only those segments. Returns `segments` (with `from` and `to`) and `moved`, which lists the segments that start
        later than requested because retention had deleted messages. Raises SubscriptionNotFound, OffsetOutOfRange,
        InvalidRequest.
        """
        return await self._run(calls.seek(topic, name, to, self._ids.nonce()))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Deletes a subscription. Raises SubscriptionNotFound."""
        await self._run(calls.call("DELETE", calls.subscription_path(topic, name)))

    async def run(self, steps: Steps[T]) -> T:
        """Runs steps of the client's core (`seaweedq.client.core`), and returns their result. All requests must be safe
        to repeat: the client repeats each request until a broker answers, for at most the client's timeout."""
        return await self._run(patiently(steps, self._patience()))

    async def close(self) -> None:
        """Waits for the running handlers of `work`, closes the producers, sends the waiting acks, and closes the
        connections. Raises the first error that occurs while closing."""
        works = tuple(self._works)
        for work in works:
            work.stop()
        for work in works:
            await work.wait()
        errors: list[Exception] = []
        for step in [*(p.close for p in tuple(self._producers)), *(a.flush for a in tuple(self._ackers))]:
            try:
                await step()
            except Exception as error:
                errors.append(error)
        await self._transport.close()
        if errors:
            raise errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"closing the client also failed: {failed}")

    def _pulling(self, topic: str, name: str, consumer: str | None, wanted: PullOptions) -> Pulling:
        check_pull_options(wanted, consumer)
        return Pulling(topic, name, consumer or self._ids.nonce(), wanted, self._patience(), self._ids.nonce)

    def _deliveries(self, pulling: Pulling, accept: str, made: Callable[[Any, Any], Any]) -> AsyncIterator[Any]:
        acker = AsyncAcker(lambda items: self._run(pulling.answer(items)))
        self._ackers.add(acker)
        return AsyncDeliveries(pulling, accept, self._run, acker, made)

    def _message(self, topic: str) -> Make[AsyncMessage]:
        def chunks(wire: WireMessage) -> AsyncIterator[bytes]:
            return self._transport.chunks(payload(topic, wire, self._patience()))

        return lambda wire, origin: AsyncMessage(wire, chunks, origin)

    def _patience(self, total_s: float | None = None) -> Patience:
        total_s = self._timeout_s if total_s is None else total_s
        return Patience(total_s, self._clock.monotonic_s, random.random, on_retry=self._on_retry)
