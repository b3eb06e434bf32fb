"""The sync client: names and signatures; `calls` has the meaning of each call."""

import atexit
import os
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import httpx

from seaweedq.client.core.messages.lease_names import LeaseNames
from seaweedq.client.core.messages.message import Make, Message, Page
from seaweedq.client.core.payloads.importing import Format, Imported, Rows, format_given, imported
from seaweedq.client.core.payloads.payload_reading import payload
from seaweedq.client.core.payloads.uploading import ANY_BYTES, Uploading
from seaweedq.client.core.producing.batching import MIB, Limits
from seaweedq.client.core.producing.delivery import Route
from seaweedq.client.core.producing.offload import Offload, type_of
from seaweedq.client.core.protocol.broker_choice import Brokers, parse_urls
from seaweedq.client.core.protocol.retry import OnRetry, Patience, unhurried
from seaweedq.client.core.protocol.wire import Published, WireMessage
from seaweedq.client.core.topics import calls
from seaweedq.client.core.topics.configuration import Bytes, Flush, Lines, Retention, Scaling, TopicFormat, named
from seaweedq.client.core.topics.topic_files import TopicFile, topic_files
from seaweedq.client.files.upload_source import Progress, Source
from seaweedq.client.http.credentials import Credentials
from seaweedq.client.http.requests import check_options, given_url
from seaweedq.client.sync.producer import Producer
from seaweedq.client.sync.subscriptions import Subscriptions
from seaweedq.client.sync.transport import SyncTransport
from seaweedq.clock import Clock, Ids, SystemClock, SystemIds
from seaweedq.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

    from seaweedq.client.core.tables.table import Bounds
    from seaweedq.client.core.topics.calls import Expired


class Client(Subscriptions):
    """Talks to a cluster through any of its brokers. Threads may share one.

    `url` is that of one broker, or of several: separated by commas, or a sequence; by default that of SEAWEEDQ_URL,
    else http://127.0.0.1:8080. They are tried in this order. After a lost connection or a 502, 503 or 504, a request
    goes to the next one if it is safe to repeat or was never sent. `timeout_s` is the timeout of one answer; a
    subscription retries for as long again while brokers are unreachable. `headers` are sent with every request;
    `token`, or what `token_file` holds, read again when it changes, or by default what SEAWEEDQ_TOKEN or
    SEAWEEDQ_TOKEN_FILE give, shows who asks. `ca_file` has the authorities of https, PEM. Every method raises the
    broker's errors (`seaweedq.errors`), and ConnectionFailed if no broker answers. Only producers and subscriptions
    retry after all brokers have failed: that publishes nothing twice. `on_retry` is called before each repeat with the
    error and the seconds for which it is still tried, and with None once a broker has answered again.
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
        transport: httpx.BaseTransport | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._clock, self._ids = clock or SystemClock(), ids or SystemIds()
        self._urls = parse_urls(given_url(url))
        check_options(timeout_s, headers)
        self._transport = SyncTransport(
            Brokers(self._urls, self._clock.monotonic_s),
            timeout_s,
            headers,
            transport,
            Credentials(token, token_file, ca_file),
        )
        self._timeout_s, self._on_retry = timeout_s, on_retry
        self._producers: set[Producer] = set()
        self._begin_subscriptions(LeaseNames(self._ids.nonce, self._clock.monotonic_s))

    def __repr__(self) -> str:
        return f"Client({','.join(self._urls)!r})"

    def create_topic(
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
        """Creates a topic, or checks that an existing one matches the fields that are given. Returns the topic as
        `topic` does.

        Durations and sizes may have units: `retention={"max_age_s": "7d"}`. Raises TopicConflict, InvalidRequest.
        """
        config = named(
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
        return self._run(calls.call("PUT", calls.topic_path(name), config))

    def topic(self, name: str) -> dict[str, Any]:
        """Returns a topic's configuration, counts, bytes and path. Raises TopicNotFound."""
        return self._run(calls.call("GET", calls.topic_path(name)))

    def topics(self) -> list[dict[str, Any]]:
        """Returns all topics."""
        return self._run(calls.pages("/v1/topics", "topics"))

    def unreadable_topics(self) -> list[str]:
        """Returns the names of the topics that `topics` leaves out, since they need a newer broker."""
        return self._run(calls.pages("/v1/topics", "unreadable"))

    def update_topic(self, name: str, **config: Any) -> dict[str, Any]:
        """Changes the given fields. Raises TopicNotFound, InvalidRequest."""
        return self._run(calls.call("PATCH", calls.topic_path(name), config))

    def preview_retention(self, name: str, **retention: Any) -> dict[str, int]:
        """Returns the files, bytes, messages and unread messages that such a retention would take now; changes nothing.

        Raises TopicNotFound, InvalidRequest.
        """
        return self._run(calls.preview_retention(name, retention))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with its data. Raises TopicNotFound."""
        self._run(calls.call("DELETE", calls.topic_path(name)))

    def flush(self, name: str) -> Any:
        """Returns once all messages acknowledged before are in Parquet files."""
        return self._run(calls.flush(name))

    def files(self, name: str, segment: int | None = None) -> list[TopicFile]:
        """Returns the files with rows of a topic, or of one of its segments, in the order of their offsets in each.

        They are listed, not opened. Raises TopicNotFound.
        """
        return self._run(topic_files(name, segment))

    def segments(self, name: str) -> list[dict[str, Any]]:
        """Returns a topic's segments: id, low, high, state, successors, start and end offset, ..."""
        return self._run(calls.segments(name))

    def segment(self, name: str, number: int) -> dict[str, Any]:
        """Returns one segment of a topic, also one that retention has removed: state, successors, start and end offset,
        ... Raises SegmentNotFound."""
        return self._run(calls.call("GET", f"{calls.topic_path(name)}/segments/{number}"))

    def history(
        self, name: str, since: datetime | None = None, until: datetime | None = None, cells: int | None = None
    ) -> dict[str, Any]:
        """Returns what each range of key hashes took in the last hour: `cells` of time and keys, coarser where there
        would be more of them, and `from` and `until`, between which the leader has recorded all. Times have an offset.
        Raises TopicNotFound, InvalidRequest."""
        return self._run(calls.history(name, since, until, cells))

    def publish(self, topic: str, messages: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Published:
        """Publishes messages `{"value", "key"?, "headers"?, "timestamp"?, "expires_in_s"?}` in one request, once.

        Instead of `value`, `"reference": {"upload_id": ...}` names an upload.

        Waits where a limit refuses it, as long as the client's timeout at most; nothing was published then. After an
        error that leaves the outcome open (ConnectionFailed), the caller must decide whether to publish again;
        a producer has no such errors.
        """
        return self._run(unhurried(calls.publish(topic, messages), self._patience(self._timeout_s)))

    def upload(
        self,
        topic: str,
        what: str | os.PathLike[str] | bytes | BinaryIO,
        content_type: str | None = None,
        progress: Progress | None = None,
        upload_id: str | None = None,
    ) -> str:
        """Uploads a file (its path, or a seekable binary file) or bytes. Returns the id to publish it by.

        `publish(topic, {"reference": {"upload_id": id}})` makes a message of it, until it expires. With `upload_id` an
        earlier upload is continued with its missing bytes; any other upload that fails or is interrupted is aborted.
        Raises UploadMismatch, UploadExpired, UploadNotFound, PayloadTooLarge, TooManyUploads, ConnectionFailed,
        OSError.
        """
        source = Source.of(what)
        try:
            kind = content_type or (type_of(Path(what)) if isinstance(what, str | os.PathLike) else ANY_BYTES)
            upload = Uploading(topic, source, kind, self._patience(self._timeout_s), self._urls, progress)
            return self._run(upload.run(upload_id))
        finally:
            source.close()

    def import_file(
        self,
        topic: str,
        what: str | os.PathLike[str] | bytes | BinaryIO,
        format: Format | None = None,
        bare: bool = False,
        progress: Progress | None = None,
        rows: Rows | None = None,
    ) -> Imported:
        """Uploads a Parquet, NDJSON or Arrow file, of any size, and publishes each of its rows as a message.

        Returns once all are durable; if any row is not valid, none is published. `format` defaults to that of the
        path's suffix; with `bare` each line of NDJSON is itself the value. `progress(bytes, of these)` reports on the
        upload, `rows(rows, of these)` on the import after it. Raises the errors of `upload` and `import_upload`.
        """
        kind = format_given(what, format, bare)
        upload_id = self.upload(topic, what, ANY_BYTES, progress)
        return self.import_upload(topic, upload_id, kind, bare, rows)

    def import_upload(
        self, topic: str, upload_id: str, format: Format, bare: bool = False, rows: Rows | None = None
    ) -> Imported:
        """As `import_file`, of an existing upload; an import requested before is joined, and publishes nothing twice.

        Raises InvalidMessages, InvalidImport, InvalidRequest (no row was published), UploadNotFound, UploadExpired,
        UploadConflict, ConnectionFailed: all with the `upload_id` among their fields.
        """
        steps = imported(topic, upload_id, format, bare, self._patience(self._timeout_s), rows)
        return self._run(steps)

    def fetch(self, topic: str, segment: int, offset: int, limit: int = 100, wait_s: float = 0) -> Page[Message]:
        """Returns at most `limit` messages of a segment from `offset` on; waits up to `wait_s` (30 at most) for the
        first one.

        Raises OffsetOutOfRange beyond the end.
        """
        return self._run(calls.fetch(topic, segment, offset, limit, wait_s, self._message(topic)))

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
    ) -> Producer:
        """Returns a producer of a topic: batches, bounded memory, retries that publish nothing twice. Use it in a
        `with`.

        If the topic's segments have several owners, it sends to each owner the rows of its segments, to all
        concurrently. `batching.Limits` explains the limits. Values over `max_message_bytes` (the broker's setting of
        that name; the producer learns a smaller one) are uploaded and published by reference. Messages that no broker
        accepts within `delivery_timeout_s` of `send` fail.
        """
        limits = Limits(linger_ms, batch_messages, batch_bytes, max_buffer_bytes, max_request_bytes)
        patience = self._patience(delivery_timeout_s)
        offload = Offload(topic, patience, self._urls, max_message_bytes)
        route = Route(topic, patience, self._ids.nonce, self._urls, offload)
        producer = Producer(route, limits, self._transport.run, self._forget)
        self._producers.add(producer)
        atexit.register(producer.close)
        return producer

    def read_table(
        self,
        topic: str,
        columns: Sequence[str] | None = None,
        live: bool = False,
        starting: "Bounds" = None,
        ending: "Bounds" = None,
        segments: Collection[int] | None = None,
        expired: "Expired" = "skip",
    ) -> "pa.Table":
        """Returns a topic's rows from its Parquet files, unsorted; `live`: complete to the last acknowledged row, none
        twice.

        `starting` and `ending` are half-open: offsets by segment, where segments that they do not name are read from
        their start, to their end, or a datetime, which stands for the first row of each segment whose `_timestamp`
        reaches it. `segments` leaves out all others. Rows that have expired when the read is planned, by the time of
        the cluster, are left out; with `expired="keep"` they are there. The files must be reachable from here; none is
        opened before its rows are read. Raises ValueError for an unknown column, segment, offset or `expired`, and for
        a start above its end.
        """
        with needs("arrow", "read_table"):
            from seaweedq.client.core.tables.table import Wanted, read_table

        wanted = Wanted(columns, live, starting, ending, segments, expired)
        return self._run(read_table(topic, wanted, self._patience(self._timeout_s)))

    def read_batches(
        self,
        topic: str,
        columns: Sequence[str] | None = None,
        live: bool = False,
        starting: "Bounds" = None,
        ending: "Bounds" = None,
        segments: Collection[int] | None = None,
        expired: "Expired" = "skip",
    ) -> Iterator["pa.RecordBatch"]:
        """Yields the rows of `read_table` a batch at a time, so that a topic may be larger than memory."""
        with needs("arrow", "read_batches"):
            from seaweedq.client.core.tables.table import Wanted, plan_table

        read = self._run(plan_table(topic, Wanted(columns, live, starting, ending, segments, expired)))
        yield from read.of_files()
        for rows in read.tail:
            yield from map(read.conformed, self.read_segment(topic, rows.segment, rows.start, rows.end, "keep"))

    def read_segment(
        self, topic: str, segment: int, start: int, end: int, expired: "Expired" = "skip"
    ) -> Iterator["pa.RecordBatch"]:
        """Yields the rows of a segment from offset `start` up to `end`, in order, in files or not, as read_table has
        them.

        Rows that have expired when a broker returns them are left out; with `expired="keep"` they are there. Waits for
        a segment's owner up to the client's timeout. Raises OffsetOutOfRange beyond the end.
        """
        with needs("arrow", "read_segment"):
            from seaweedq.client.core.tables.segment_rows import fetch_rows

        while start < end:
            patience = self._patience(self._timeout_s)
            batches, start = self._run(fetch_rows(topic, segment, start, end, patience, expired))
            yield from batches

    def close(self) -> None:
        """Ends `work` once what runs is finished, closes the producers, sends the waiting acks, closes the connections.
        Raises the first error of these."""
        self._end_works()
        errors: list[Exception] = []
        for step in [*(p.close for p in tuple(self._producers)), *(a.flush for a in tuple(self._ackers))]:
            try:
                step()
            except Exception as error:
                errors.append(error)
        self._transport.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"moreover, closing the client failed: {failed}")

    def _forget(self, producer: Producer) -> None:
        self._producers.discard(producer)
        atexit.unregister(producer.close)

    def _message(self, topic: str) -> Make[Message]:
        def chunks(wire: WireMessage) -> Iterator[bytes]:
            return self._transport.chunks(payload(topic, wire, self._patience(self._timeout_s)))

        return lambda wire, origin: Message(wire, chunks, origin)

    def _patience(self, total_s: float) -> Patience:
        return Patience(total_s, self._clock.monotonic_s, random.random, on_retry=self._on_retry)
