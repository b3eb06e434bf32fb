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

    `url` is the URL of one broker or of several, separated by commas or given as a sequence. The default is
    SEAWEEDQ_URL, or else http://127.0.0.1:8080. The client tries the brokers in this order. After a lost connection or
    a 502, 503 or 504, the client sends a request to the next broker if the request is safe to repeat or was never sent.
    `timeout_s` is the timeout for one answer; while no broker can be reached, a subscription retries for as long again.
    `headers` are sent with every request. `token`, or the content of `token_file` (read again when it changes),
    identifies the caller; the default is SEAWEEDQ_TOKEN or SEAWEEDQ_TOKEN_FILE. `ca_file` holds the certificate
    authorities for https, as PEM; the default is SEAWEEDQ_CA_FILE, or else the system's. Every method raises the
    broker's errors (`seaweedq.errors`), and ConnectionFailed if no broker answers. After all brokers have failed, only
    producers and subscriptions retry, because they can retry without publishing anything twice. Before each retry, the
    client calls `on_retry` with the error and the number of seconds that it will keep trying; once a broker answers
    again, it calls `on_retry` with None.
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
        )
        return await self._run(calls.call("PUT", calls.topic_path(name), config))

    async def topic(self, name: str) -> dict[str, Any]:
        """Returns a topic's configuration, counts, sizes in bytes and store path. Raises TopicNotFound."""
        return await self._run(calls.call("GET", calls.topic_path(name)))

    async def topics(self) -> list[dict[str, Any]]:
        """Returns all topics."""
        return await self._run(calls.pages("/v1/topics", "topics"))

    async def unreadable_topics(self) -> list[str]:
        """Returns the names of the topics that `topics` omits because their records need a newer broker."""
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
        """Makes a schema the next version of a typed topic's schema. Returns its `schema_id`, and the `schema` with an
        id for each field. A repeat changes nothing, and so does `dry_run`.

        Raises SchemaIncompatible with all `differences`, TopicConflict unless `if_schema_id` is the newest version,
        TopicNotFound, InvalidRequest.
        """
        return await self._run(calls.evolve_schema(name, schema, if_schema_id, dry_run))

    async def preview_retention(self, name: str, **retention: Any) -> dict[str, int]:
        """Returns the number of files, bytes, messages and unread messages that this retention would delete now.
        Changes nothing.

        Raises TopicNotFound, InvalidRequest.
        """
        return await self._run(calls.preview_retention(name, retention))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with its data. Raises TopicNotFound."""
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
        """Returns a topic's segments with id, low, high, state, successors, start and end offset, ..."""
        return await self._run(calls.segments(name))

    async def segment(self, name: str, number: int) -> dict[str, Any]:
        """Returns one segment of a topic, even a segment that retention has removed: state, successors, start and end
        offset, ... Raises SegmentNotFound."""
        return await self._run(calls.call("GET", f"{calls.topic_path(name)}/segments/{number}"))

    async def history(
        self, name: str, since: datetime | None = None, until: datetime | None = None, cells: int | None = None
    ) -> dict[str, Any]:
        """Returns the load of each range of key hashes in the last hour. `cells` are ranges of time and keys; if there
        are too many, the broker combines them. The leader has recorded the whole time from `from` to `until`. Times
        need a UTC offset. Raises TopicNotFound, InvalidRequest."""
        return await self._run(calls.history(name, since, until, cells))

    async def publish(self, topic: str, messages: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Published:
        """Publishes messages `{"value", "key"?, "headers"?, "timestamp"?, "expires_in_s"?}` in one request.

        Instead of `value`, `"reference": {"upload_id": ...}` names an upload.

        If a rate limit refuses the request, nothing is published; the client waits and sends the request again, for at
        most its timeout. After an error that leaves the outcome open (ConnectionFailed), the caller must decide whether
        to publish again. A producer avoids such errors."""
        return await self._run(unhurried(calls.publish(topic, messages), self._patience()))

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

        Until the upload expires, `publish(topic, {"reference": {"upload_id": id}})` turns it into a message.
        `upload_id` resumes an earlier upload: only the missing bytes are sent. Any other upload is aborted if it fails
        or is interrupted. With `write="{writer}/{number}"`, only that write may use the upload. Raises UploadMismatch,
        UploadExpired, UploadNotFound, PayloadTooLarge, TooManyUploads, ConnectionFailed, OSError."""
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

        Returns once all rows are durable. If any row is invalid, no row is published. `format` defaults to the format
        of the path's suffix. With `bare`, each line of NDJSON is a value. `progress(bytes, total)` reports the progress
        of the upload, and then `rows(rows, total)` the progress of the import. Raises the errors of `upload` and
        `import_upload`."""
        kind = choose_format(what, format, bare)
        upload_id = await self.upload(topic, what, ANY_BYTES, progress)
        return await self.import_upload(topic, upload_id, kind, bare, rows)

    async def import_upload(
        self, topic: str, upload_id: str, format: Format, bare: bool = False, rows: Rows | None = None
    ) -> Imported:
        """Imports an existing upload, as `import_file` does. If the import was already requested, joins that import and
        publishes nothing twice.

        Raises InvalidMessages, InvalidImport, InvalidRequest (no row was published), UploadNotFound, UploadExpired,
        UploadConflict, ConnectionFailed. All these errors have the field `upload_id`."""
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
        """Publishes the rows of many uploads, once per writer and number. The first call with a number decides which
        rows; later calls with that number get the same result, even if they name other uploads.

        Each upload must have been created for this write (`upload` with `write`), and all must have the same format.
        Returns once all rows are durable, or after `wait_s` seconds with the state at that moment; repeat the call to
        join the running write. If any row of any file is invalid, no row is published. A writer's numbers must rise.
        With `drawn`, the writer's name is random, and the topic remembers the writer for one day instead of 30. Raises
        WriteOutOfOrder, TooManyWriters, InvalidMessages, InvalidImport, InvalidRequest, UploadNotFound, UploadExpired,
        UploadConflict, ConnectionFailed. All these errors have the fields `writer` and `number`."""
        steps = write_rows(topic, writer, number, uploads, format, bare, drawn, self._patience(), wait_s)
        return await self._run(steps)

    async def writes(self, topic: str) -> list[WriteState]:
        """Returns the newest write of each writer of a topic, sorted by writer."""
        return await self._run(patiently(uploading.writes(topic), self._patience()))

    async def last_write(self, topic: str, writer: str) -> WriteState:
        """Returns the newest write of a writer. Raises WriteNotFound."""
        return await self._run(patiently(uploading.last_write(topic, writer), self._patience()))

    async def fetch(
        self, topic: str, segment: int, offset: int, limit: int = 100, wait_s: float = 0
    ) -> Page[AsyncMessage]:
        """Returns at most `limit` messages of a segment from `offset` on. Waits up to `wait_s` seconds (at most 30) for
        the first message.

        Raises OffsetOutOfRange if `offset` is beyond the end.
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
    ) -> AsyncProducer:
        """Returns a producer for a topic. The producer sends batches, uses bounded memory, and retries without
        publishing anything twice.

        Use it in an `async with`. If several brokers own the topic's segments, the producer sends rows directly to the
        owner of their segment, and to all owners concurrently. `batching.Limits` explains the limits. Values over
        `max_message_bytes` are uploaded and published by reference; pass the broker's setting (the producer learns a
        smaller limit from the broker). A message fails if no broker accepts it within `delivery_timeout_s` of `send`.
        """
        limits = Limits(linger_ms, batch_messages, batch_bytes, max_buffer_bytes, max_request_bytes)
        patience = self._patience(delivery_timeout_s)
        offload = Offload(topic, patience, self._urls, max_message_bytes)
        route = Route(topic, patience, self._ids.nonce, self._urls, offload)
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
        """Returns a topic's rows from its Parquet files, unsorted. With `live`, the result has every acknowledged row,
        each exactly once.

        `starting` (inclusive) and `ending` (exclusive) are either offsets by segment or a datetime. Segments that the
        offsets omit are read from their start, or to their end. A datetime stands for each segment's first row with
        this `_timestamp` or a later one. `segments` excludes all other segments. Rows that have expired by the
        cluster's time when the read is planned are left out; `expired="keep"` includes them. This machine must be able
        to reach the files; no file is opened before its rows are read. Raises ValueError for an unknown column,
        segment, offset or `expired`, and for a start above its end.
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
        """Yields the rows of `read_table` batch by batch, so that a topic can be larger than memory."""
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
        """Yields the rows of a segment from offset `start` up to `end`, in order, with the columns of `read_table`,
        whether or not the rows are in files yet.

        Rows that have expired when a broker returns them are left out; `expired="keep"` includes them. Waits for the
        segment's owner, up to the client's timeout. Raises OffsetOutOfRange if `start` is beyond the end.
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
        """Iterates over the messages of a subscription. Ends after `idle_timeout_s` without a message.

        Creates the subscription when the iteration begins, unless it exists. If you leave the iteration early, `close`
        sends the last acks.

        Delivery is at least once. A message that is not acked within `ack_deadline_s` is redelivered. If a broker
        restarts, messages that were acked just before may be redelivered, too.

        `start` is where a new subscription begins: "latest", "earliest" or {"timestamp": ...}. `mode` is "ordered" (the
        default for a new subscription: each segment has one consumer at a time), "shared" (no order) or "keyed"
        (messages with the same key stay in order). `consumer` names this consumer; the default is a random name. In
        "ordered" mode, a consumer that restarts under the same name first receives the messages that it held. Two
        consumers must not use the same name. The other parameters are settings of the subscription; durations may have
        units.

        Raises SubscriptionConflict if the subscription exists with another mode or other settings than given. `start`
        and `ack_deadline_s` apply only to a new subscription.
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
        """Iterates over batches of a subscription. A batch holds the rows of one pull as a pyarrow table, at most
        `max_messages` (10,000) rows and 8 MiB. `batch.ack()` acks all rows of the batch.

        Parameters and guarantees are those of `subscribe`.
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
        """Handles the messages of a subscription with up to `workers` concurrent handlers. Returns the counts once no
        message has arrived for `idle_timeout_s`, or the client is closed.

        A message is acked when `handler(message)` returns. If the handler raises an exception, the message is nacked
        and redelivered after the subscription's backoff; if the handler raises `Reject`, the message becomes a dead
        letter. Messages of the same segment (`ordered`) or key (`keyed`) are handled one at a time, in order. Leases
        are extended during handling, for at most `max_extension_s` (3,600) per message. At most `max_messages` messages
        wait to be handled, by default twice as many as workers; use more for short handlers. The other parameters are
        those of `subscribe`. Acks that arrive too late are logged, and counted as `unknown`. An interrupt or a
        cancellation returns the messages that no handler has started, so that their leases end soon. Raises the errors
        of `subscribe`, and the first error of an ack."""
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
        """Moves a subscription to another position. All leases end, and messages after the new position are delivered
        again even if they were acked.

        `to` is "earliest", "latest", a message time (with a time zone), or {"offsets": {segment: offset}}, which moves
        only those segments. Returns `segments` with `from` and `to`, and `moved`: the segments that start later than
        requested, because retention had deleted messages. Raises SubscriptionNotFound, OffsetOutOfRange,
        InvalidRequest.
        """
        return await self._run(calls.seek(topic, name, to, self._ids.nonce()))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Deletes a subscription. Raises SubscriptionNotFound."""
        await self._run(calls.call("DELETE", calls.subscription_path(topic, name)))

    async def run(self, steps: Steps[T]) -> T:
        """Runs steps of the client's core (`seaweedq.client.core`), and returns their result. All requests must be safe
        to repeat: the client sends each request until a broker answers, for at most its timeout."""
        return await self._run(patiently(steps, self._patience()))

    async def close(self) -> None:
        """Waits for the running handlers of `work`, closes the producers, sends the waiting acks, and closes the
        connections. Raises the first error that occurs."""
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
