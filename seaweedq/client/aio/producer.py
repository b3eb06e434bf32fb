"""The async producer: a task releases the batches of `send`, each batch is sent in its own task, and receipts can be
awaited."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Generator
from datetime import datetime
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from seaweedq.client.core.batching import MOST_BYTES, Limits, ProducerBatch, SentLine, row_of
from seaweedq.client.core.delivery import MOST_UPLOADS, Outcome, Route, file_job, receipt_repr
from seaweedq.client.core.effects import Steps
from seaweedq.client.core.segment_map import MapRefresh
from seaweedq.client.core.streams import Partitioner, Placeholder, ProducerStream
from seaweedq.client.core.wire import Published, envelope
from seaweedq.client.files import Progress
from seaweedq.errors import ClientError
from seaweedq.extras import needs


class AsyncDelivery:
    """The outcome of one of a producer's requests, which works like a future. Awaiting a delivery is the same as
    calling `result`."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._outcome = Outcome()

    def complete(self, outcome: Outcome) -> None:
        """States the outcome."""
        self._outcome = outcome
        self._done.set()

    async def outcome(self) -> Outcome:
        """Waits for the outcome and returns it."""
        await self._done.wait()
        return self._outcome

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._done.is_set()

    def outcome_now(self) -> Outcome | None:
        """Returns the outcome, or None if it is not known yet."""
        return self._outcome if self.done() else None

    async def exception(self) -> Exception | None:
        """Returns the error if any of the messages failed, else None."""
        return (await self.outcome()).error

    async def result(self) -> Published:
        """Returns the broker's answer; raises the delivery's error."""
        outcome = await self.outcome()
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published

    def __await__(self) -> Generator[Any, None, Published]:
        return self.result().__await__()


class AsyncReceipt:
    """The outcome of one message, which works like a future whose result is the message's id. Awaiting a receipt is the
    same as calling `result`."""

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: AsyncDelivery, index: int) -> None:
        self._delivery, self._index = delivery, index

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._delivery.done()

    async def exception(self) -> Exception | None:
        """Returns the message's error if it failed, else None."""
        return (await self._delivery.outcome()).error_of(self._index)

    async def result(self) -> str:
        """Returns the id `{segment}-{offset}`; raises the message's error."""
        return (await self._delivery.outcome()).id_of(self._index)

    def __await__(self) -> Generator[Any, None, str]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return receipt_repr("AsyncReceipt", self._delivery.outcome_now(), self._index)


if TYPE_CHECKING:
    import pyarrow as pa


_ARROW = "seaweedq.client.core.arrow_batches"


class AsyncProducer:
    """Collects messages and publishes them in batches, each message exactly once. For one event loop.

    If a message fails, its receipt raises the error. After a message has failed, the next `send`, `flush` or `close`
    also raises the error, but only once; the producer can still be used after that."""

    def __init__(
        self,
        route: Route,
        limits: Limits,
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        on_close: Callable[["AsyncProducer"], None],
    ) -> None:
        self._route, self._limits, self._run, self._on_close = route, limits, run, on_close
        self._now_s, self._traces = route.patience.monotonic_s, route.traces
        self._partition: Partitioner[AsyncDelivery] = Partitioner(limits, AsyncDelivery, route.new_id)
        self._map_refresh = MapRefresh()
        self._wake = asyncio.Event()
        self._progressed = asyncio.Condition()
        self._error: Exception | None = None
        self._closing = False
        self._acknowledged = 0
        self._task: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._upload_slots = asyncio.Semaphore(MOST_UPLOADS)

    async def send(
        self,
        value: Any,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        timestamp: datetime | str | None = None,
        expires_in_s: float | None = None,
    ) -> AsyncReceipt:
        """Adds a message to the buffer, to be sent within `linger_ms`. If the buffer already holds `max_buffer_bytes`,
        waits until it has room.

        `value` is any JSON value, a msgspec.Raw with JSON text, or bytes for a `bytes` topic. Raises TypeError or
        ValueError for an invalid message. If an earlier batch failed, `send` raises that batch's error, and does not
        accept the message.
        """
        if self._traces is not None:
            headers = self._traces.create(self._route.topic, headers)
        is_plain = headers is None and timestamp is None and expires_in_s is None
        offload = self._route.offload
        if is_plain and (row := row_of(value, key, offload.limit_bytes if offload else MOST_BYTES)):
            await self._wait_for_room(row[2])
            return await self._added(*self._partition.add_row(key, *row, self._now_s))
        line = envelope(value, key, headers, timestamp, expires_in_s)
        if offload and offload.is_large(line):
            return await self._hold(key, line, offload.line(line), headers)
        await self._wait_for_room(len(line))
        return await self._added(*self._partition.add_line(key, line, self._now_s(), headers))

    async def _added(self, delivery: AsyncDelivery, index: int) -> AsyncReceipt:
        # The task wakes for a batch's first message and for its last: in between it knows all there is.
        if index in (0, self._limits.batch_messages - 1):
            self._start()
            await asyncio.sleep(0)  # a caller that never waits would keep the task from its turn
        return AsyncReceipt(delivery, index)

    async def send_file(
        self,
        path: str | os.PathLike[str],
        key: str | None = None,
        headers: dict[str, str] | None = None,
        content_type: str | None = None,
        progress: Progress | None = None,
        timestamp: datetime | str | None = None,
        expires_in_s: float | None = None,
    ) -> AsyncReceipt:
        """Publishes a file as a message: the producer uploads the file in the background, and publishes it by
        reference.

        Later messages wait for the upload, so that the order is kept. The file must not change before the upload is
        complete. By default, the suffix of the file's name decides the `content_type`. `progress(bytes, total)` reports
        the upload's progress, from any thread. Raises OSError immediately if the file cannot be read, and otherwise the
        errors of `send`. The receipt raises the errors of the upload, such as UploadMismatch, UploadExpired and
        PayloadTooLarge. If the upload fails, no data of the file is kept."""
        if self._traces is not None:
            headers = self._traces.create(self._route.topic, headers)
        arguments = (path, key, headers, content_type, progress, timestamp, expires_in_s)
        job = await asyncio.to_thread(file_job, *arguments)
        assert self._route.offload is not None
        return await self._hold(key, b"", self._route.offload.file(job), headers)

    async def _hold(
        self, key: str | None, line: bytes, steps: Steps[SentLine], headers: dict[str, str] | None
    ) -> AsyncReceipt:
        await self._wait_for_room(len(line))
        held = self._partition.hold(key, line, self._now_s(), headers)
        task = asyncio.create_task(self._upload(held, steps), name=f"upload-{self._route.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._start()
        return AsyncReceipt(held.batch.delivery, 0)

    async def _upload(self, held: Placeholder[AsyncDelivery], steps: Steps[SentLine]) -> None:
        sent: SentLine | Exception = ClientError("the upload was cancelled")
        try:
            async with self._upload_slots:
                sent = await self._run(steps)
        except Exception as error:  # the receipt raises it
            sent = error
        finally:
            held.release(sent, self._now_s())
            self._wake.set()

    async def send_table(self, table: "pa.Table | pa.RecordBatch") -> list[AsyncDelivery]:
        """Publishes a table's rows, in requests of at most half of `max_request_bytes`. Returns one Delivery for each
        request.

        The table's columns are `value` (or the fields of a typed topic) and, optionally, `_key`, `_timestamp`,
        `_headers` and `_expires`. If the buffer already holds `max_buffer_bytes`, waits until it has room. Raises as
        `send` does.
        """
        with needs("arrow", "send_table"):
            if _ARROW not in sys.modules:  # to import it takes time that an event loop does not have
                await asyncio.to_thread(import_module, _ARROW)
            from seaweedq.client.core.arrow_batches import slices

        deliveries: list[AsyncDelivery] = []
        limit_bytes = self._limits.max_request_bytes // 2
        for rows in slices(table, limit_bytes):
            await self._wait_for_room(rows.nbytes)
            deliveries += self._partition.add_rows(self._partition.routing.cut(rows, limit_bytes), self._now_s())
            self._start()
        return deliveries

    @property
    def acknowledged(self) -> int:
        """Returns the number of messages that brokers have acknowledged so far."""
        return self._acknowledged

    async def flush(self) -> None:
        """Returns once all earlier messages are acknowledged or have failed. Raises the error of a failed batch."""
        is_answered = self._partition.close_open()
        self._wake.set()
        async with self._progressed:
            await self._progressed.wait_for(is_answered)
        self._raise_error()

    async def close(self) -> None:
        """Flushes and closes the producer. Raises the errors of `flush`. Closing a closed producer does nothing."""
        self._closing = True
        self._partition.close_open()
        self._wake.set()
        if self._task:
            await asyncio.shield(self._task)  # a cancelled close leaves it running, and closing again waits for it
        self._on_close(self)
        self._raise_error()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Exception as failed:  # of a file also an OSError
            if error is None:
                raise
            error.add_note(f"the producer also failed: {failed}")

    async def _wait_for_room(self, size: int) -> None:
        while not (self._error or self._closing or self._partition.has_room(size)):
            async with self._progressed:
                await self._progressed.wait()
        self._raise_error()
        if self._closing:
            raise ClientError(f"the producer of topic {self._route.topic} is closed")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._deliver_all(), name=f"producer-{self._route.topic}")

    async def _deliver_all(self) -> None:
        while not (self._closing and self._partition.idle):
            self._wake.clear()
            now_s = self._now_s()
            wait_s = self._partition.ready_in_s(now_s)
            if wait_s == 0:
                if self._map_refresh.due(now_s):
                    self._map_refresh.begin()
                    self._fetching = asyncio.create_task(self._follow(), name=f"segments-{self._route.topic}")
                task = asyncio.create_task(self._send_batch(*self._partition.next_batch(now_s)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
        if self._fetching:
            self._fetching.cancel()

    async def _send_batch(self, stream: ProducerStream[AsyncDelivery], batch: ProducerBatch[AsyncDelivery]) -> None:
        outcome: Outcome
        try:
            outcome = await self._run(self._route.deliver(stream, batch))
        except Exception as error:  # the producer must live on; receipts raise the error
            outcome = Outcome(error=error)
        batch.delivery.complete(outcome)
        self._partition.finish(stream, batch)
        if outcome.misrouted or outcome.error or batch.is_unfit:
            self._map_refresh.invalidate()
        self._acknowledged += outcome.published.count if outcome.published else 0
        self._error = self._error or outcome.error
        self._wake.set()
        async with self._progressed:
            self._progressed.notify_all()

    async def _follow(self) -> None:
        try:
            found = await self._run(self._route.fetch_map())
        except Exception:  # a map only makes things faster
            found = None
        self._map_refresh.end(self._now_s(), seen=found is not None)
        if found:
            seen, rule = found
            self._partition.follow(seen, rule, self._route.given)
            self._wake.set()
