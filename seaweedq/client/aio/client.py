"""The async client: names and signatures; what each call means stands in `calls`."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from weakref import WeakSet

import httpx

from seaweedq.client.aio.producer import AsyncProducer
from seaweedq.client.aio.subscriber import AsyncAcker, messages
from seaweedq.client.aio.transport import AsyncTransport
from seaweedq.client.core import calls
from seaweedq.client.core.batching import MIB, Limits
from seaweedq.client.core.broker_choice import Brokers, parse_urls
from seaweedq.client.core.delivery import Route
from seaweedq.client.core.importing import Format, Imported, Rows, format_given, imported
from seaweedq.client.core.message import AsyncMessage, Make, Page
from seaweedq.client.core.offload import Offload, type_of
from seaweedq.client.core.payload_reading import payload
from seaweedq.client.core.pulling import Pulling
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.uploading import ANY_BYTES, Uploading
from seaweedq.client.core.wire import Published, WireMessage
from seaweedq.client.files.upload_source import Progress, Source
from seaweedq.clock import Clock, Ids, SystemClock, SystemIds

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncClient:
    """Talks to a cluster through any of its brokers. For one event loop.

    `url` is one broker's, or that of several: separated by commas, or a sequence. They are tried in this order; what
    one does not answer, or with 502, 503 or 504, goes to the next, if it is safe to repeat or was never sent.
    `timeout_s` is the patience for one answer; a subscription also tries for so long again where brokers are gone.
    `headers` go with every request. Every method raises what the broker states (`seaweedq.errors`), ConnectionFailed
    where none answers. Only producers and subscriptions go on when all brokers have failed: they double nothing.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = 30,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._clock, self._ids = clock or SystemClock(), ids or SystemIds()
        self._urls = parse_urls(url)
        self._transport = AsyncTransport(Brokers(self._urls, self._clock.monotonic_s), timeout_s, headers, transport)
        self._run = self._transport.run
        self._timeout_s = timeout_s
        self._producers: set[AsyncProducer] = set()
        self._ackers: WeakSet[AsyncAcker] = WeakSet()

    async def create_topic(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a topic, or ensure that it agrees with the fields given; the topic as `topic` shows it.

        `config`: format, schema, key_field, initial_segments, scaling, flush, retention. Raises TopicConflict.
        """
        return await self._run(calls.call("PUT", calls.topic_path(name), config))

    async def topic(self, name: str) -> dict[str, Any]:
        """A topic's configuration, counts, bytes and path. Raises TopicNotFound."""
        return await self._run(calls.call("GET", calls.topic_path(name)))

    async def topics(self) -> list[dict[str, Any]]:
        """All topics."""
        return await self._run(calls.pages("/v1/topics", "topics"))

    async def update_topic(self, name: str, **config: Any) -> dict[str, Any]:
        """Change the fields given. Raises TopicNotFound, InvalidRequest."""
        return await self._run(calls.call("PATCH", calls.topic_path(name), config))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its data. Raises TopicNotFound."""
        await self._run(calls.call("DELETE", calls.topic_path(name)))

    async def flush(self, name: str) -> Any:
        """Return once all that was acknowledged before is in Parquet files."""
        return await self._run(calls.flush(name))

    async def segments(self, name: str) -> list[dict[str, Any]]:
        """A topic's segments: id, low, high, state, successors, start and end offset, ..."""
        return await self._run(calls.segments(name))

    async def publish(self, topic: str, messages: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Published:
        """Publish messages `{"value", "key"?, "headers"?, "timestamp"?, "expires_in_s"?}` in one request, once.

        In place of `value`, `"reference": {"upload_id": ...}` names what was uploaded.

        An error that leaves the outcome open (ConnectionFailed) is the caller's to judge; a producer has no such cases.
        """
        return await self._run(calls.publish(topic, messages))

    async def upload(
        self,
        topic: str,
        what: str | os.PathLike[str] | bytes | BinaryIO,
        content_type: str | None = None,
        progress: Progress | None = None,
        upload_id: str | None = None,
    ) -> str:
        """Upload a file (its path, or a binary file that can seek) or bytes; the id to publish it by.

        `publish(topic, {"reference": {"upload_id": id}})` makes a message of it, until it expires. With `upload_id` an
        upload that was begun goes on with what is missing; any other that fails or is interrupted is aborted. Raises
        UploadMismatch, UploadExpired, UploadNotFound, PayloadTooLarge, TooManyUploads, ConnectionFailed, OSError.
        """
        source = await asyncio.to_thread(Source.of, what)
        try:
            kind = content_type or (type_of(Path(what)) if isinstance(what, str | os.PathLike) else ANY_BYTES)
            upload = Uploading(topic, source, kind, self._patience(self._timeout_s), self._urls, progress)
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
        """Upload a Parquet, NDJSON or Arrow file, of any size, and have each of its rows become a message.

        Returns once all are durable; if any row is not valid none is taken. `format` is by default as the path's suffix
        says; with `bare` each line of NDJSON is itself the value. `progress(bytes, of these)` hears of the upload,
        `rows(rows, of these)` of what comes then. Raises what `upload` and `import_upload` raise.
        """
        kind = format_given(what, format, bare)
        upload_id = await self.upload(topic, what, ANY_BYTES, progress)
        return await self.import_upload(topic, upload_id, kind, bare, rows)

    async def import_upload(
        self, topic: str, upload_id: str, format: Format, bare: bool = False, rows: Rows | None = None
    ) -> Imported:
        """As `import_file`, of what was uploaded; an import that was asked for before is joined, and nothing doubled.

        Raises InvalidMessages, InvalidImport, InvalidRequest (nothing was taken), UploadNotFound, UploadExpired,
        UploadConflict, ConnectionFailed: all with the `upload_id` among their fields.
        """
        steps = imported(topic, upload_id, format, bare, self._patience(self._timeout_s), rows)
        return await self._run(steps)

    async def fetch(
        self, topic: str, segment: int, offset: int, limit: int = 100, wait_s: float = 0
    ) -> Page[AsyncMessage]:
        """Messages of a segment from `offset` on, at most `limit`; waits up to `wait_s` (30 at most) for a first one.

        Raises OffsetOutOfRange beyond the end.
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
        """A producer of a topic: batches, bounded memory, retries that double nothing. Use it in an `async with`.

        Where the topic's segments have several owners, it sends to each what is its own, to all at a time.
        The limits are explained at `batching.Limits`. Values over `max_message_bytes` (the broker's setting of that
        name; a smaller one is learned from it) are uploaded and published by reference. Messages that no broker takes
        within `delivery_timeout_s` of `send` fail.
        """
        limits = Limits(linger_ms, batch_messages, batch_bytes, max_buffer_bytes, max_request_bytes)
        patience = self._patience(delivery_timeout_s)
        offload = Offload(topic, patience, self._urls, max_message_bytes)
        route = Route(topic, patience, self._ids.nonce, self._urls, offload)
        producer = AsyncProducer(route, limits, self._run, self._forget)
        self._producers.add(producer)
        return producer

    def subscribe(
        self,
        topic: str,
        subscription: str,
        start: str | Mapping[str, Any] = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int = 500,
        ack_deadline_s: float = 30,
    ) -> AsyncIterator[AsyncMessage]:
        """Iterates over the messages of a subscription; ends after `idle_timeout_s` without any.

        Creates the subscription as the iteration begins unless it exists. Breaking off early leaves the last acks to
        `close`. At least once: what is not acked within `ack_deadline_s` comes again, and after a broker's restart what
        was acked a moment before may too. `start`: "latest", "earliest" or {"timestamp": ...}, for a new subscription.
        """
        pulling = Pulling(
            topic, subscription, self._ids.nonce(), max_messages, idle_timeout_s, self._patience(self._timeout_s)
        )
        acker = AsyncAcker(lambda ids: self._run(pulling.ack(ids)))
        self._ackers.add(acker)
        return messages(pulling, start, ack_deadline_s, self._run, acker, self._message(topic))

    async def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """A subscription's configuration, and its lag for each segment. Raises SubscriptionNotFound."""
        return await self._run(calls.call("GET", calls.subscription_path(topic, name)))

    async def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """All subscriptions of a topic."""
        return await self._run(calls.pages(f"{calls.topic_path(topic)}/subscriptions", "subscriptions"))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription. Raises SubscriptionNotFound."""
        await self._run(calls.call("DELETE", calls.subscription_path(topic, name)))

    async def read_table(self, topic: str, columns: Sequence[str] | None = None, live: bool = False) -> "pa.Table":
        """A topic's rows from its Parquet files, unsorted; `live`: complete to the last acknowledged one, none twice.

        The files must be reachable from here. Raises ValueError for an unknown column.
        """
        from seaweedq.client.core.table import read_table

        return await self._run(read_table(topic, columns, live))

    async def close(self) -> None:
        """Close the producers, send the acks that wait, close the connections. Raises the first error of these."""
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
            error.add_note(f"moreover, closing the client failed: {failed}")

    def _forget(self, producer: AsyncProducer) -> None:
        self._producers.discard(producer)

    def _message(self, topic: str) -> Make[AsyncMessage]:
        def pieces(wire: WireMessage) -> AsyncIterator[bytes]:
            return self._transport.pieces(payload(topic, wire, self._patience(self._timeout_s)))

        return lambda wire, ack: AsyncMessage(wire, pieces, ack)

    def _patience(self, total_s: float) -> Patience:
        return Patience(total_s, self._clock.monotonic_s, random.random)
