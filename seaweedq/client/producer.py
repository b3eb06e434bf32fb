"""The sync producer: a thread that sends what `send` gathers."""

import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from seaweedq.client.batching import Batch, Batcher, Limits
from seaweedq.client.delivering import Outcome, Route
from seaweedq.client.effects import Steps
from seaweedq.client.wire import Published, envelope
from seaweedq.errors import ClientError, SeaweedqError

if TYPE_CHECKING:
    import pyarrow as pa


class Delivery:
    """What becomes of one request of a producer."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._outcome = Outcome()

    def settle(self, outcome: Outcome) -> None:
        """State the outcome."""
        self._outcome = outcome
        self._done.set()

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """The outcome, once it is known; waits at most `timeout_s`, then raises TimeoutError."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"no outcome within {timeout_s} s")
        return self._outcome

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """The error, if all or some of it failed; waits at most `timeout_s`, then raises TimeoutError."""
        return self.outcome(timeout_s).error

    def result(self, timeout_s: float | None = None) -> Published:
        """What the broker answered; raises the delivery's error, or TimeoutError after `timeout_s`."""
        outcome = self.outcome(timeout_s)
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published


class Receipt:
    """What becomes of one message: like a future whose result is the message's id."""

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery, self._index = delivery, index

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.done()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """The error, if it failed; waits at most `timeout_s`, then raises TimeoutError."""
        return self._delivery.outcome(timeout_s).error_of(self._index)

    def result(self, timeout_s: float | None = None) -> str:
        """The id `{segment}-{offset}`; raises the message's error, or TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).id_of(self._index)


class Producer:
    """Gathers messages and publishes them in batches, each exactly once. Threads may share it.

    What failed is known to its receipts, and the error is also raised once: by the next `send`, `flush` or `close`.
    The producer goes on after it. Leaving a `with` flushes, but for an interrupt (KeyboardInterrupt, SystemExit): that
    leaves at once, and what is not acknowledged by then may be lost.
    """

    def __init__(
        self,
        route: Route,
        limits: Limits,
        run: Callable[[Steps[Outcome]], Outcome],
        on_close: Callable[["Producer"], None],
    ) -> None:
        self._route, self._limits, self._run, self._on_close = route, limits, run, on_close
        self._now_s = route.patience.monotonic_s
        self._batcher: Batcher[Delivery] = Batcher(limits, Delivery)
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closing = False
        self._acknowledged = 0
        self._thread = threading.Thread(target=self._deliver_all, name=f"producer-{route.topic}", daemon=True)
        self._thread.start()

    def send(
        self,
        value: Any,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        timestamp: datetime | str | None = None,
        expires_in_s: float | None = None,
    ) -> Receipt:
        """Take a message; it leaves within `linger_ms`. Blocks while `max_buffer_bytes` wait.

        `value` is anything that JSON has, a msgspec.Raw of JSON text, or bytes for a `bytes` topic. Raises TypeError
        and ValueError for what is no message, and the error of an earlier batch: then this message is not taken.
        """
        line = envelope(value, key, headers, timestamp, expires_in_s)
        with self._changed:
            self._wait_for_room(len(line))
            delivery, index = self._batcher.add_line(line, self._now_s())
            # The thread wakes for a batch's first message and for its last: in between it knows all there is.
            if index in (0, self._limits.batch_messages - 1):
                self._changed.notify_all()
        return Receipt(delivery, index)

    def send_table(self, table: "pa.Table | pa.RecordBatch") -> list[Delivery]:
        """Publish a table's columns, in requests of at most half of `max_request_bytes`; a delivery for each.

        Columns: `value`, or the fields of a typed topic, and optionally `_key`, `_timestamp`, `_headers`, `_expires`.
        Blocks while `max_buffer_bytes` wait; raises as `send` does.
        """
        from seaweedq.client.arrow import streams

        deliveries = []
        for stream, rows in streams(table, self._limits.max_request_bytes // 2):
            with self._changed:
                self._wait_for_room(len(stream))
                deliveries.append(self._batcher.add_stream(stream, rows, self._now_s()))
                self._changed.notify_all()
        return deliveries

    @property
    def acknowledged(self) -> int:
        """How many messages brokers have acknowledged so far."""
        return self._acknowledged

    def flush(self) -> None:
        """Return once all that was sent before is settled; raises the error of a batch that failed."""
        with self._changed:
            self._batcher.close_open()
            self._changed.notify_all()
            accepted = self._batcher.accepted
            self._changed.wait_for(lambda: self._batcher.settled >= accepted)
            self._raise_error()

    def close(self) -> None:
        """Flush and end. Raises as `flush` does; closing again is no error."""
        with self._changed:
            self._closing = True
            self._batcher.close_open()
            self._changed.notify_all()
        self._thread.join()
        self._on_close(self)
        with self._changed:
            self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            return self._abandon()
        try:
            self.close()
        except SeaweedqError as failed:
            if error is None:
                raise
            error.add_note(f"the producer failed too: {failed}")

    def _abandon(self) -> None:
        """Whoever interrupts a program wants out, broker or no broker: the thread is left to itself."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._on_close(self)

    def _wait_for_room(self, size: int) -> None:
        self._changed.wait_for(lambda: self._error or self._closing or self._batcher.has_room(size))
        self._raise_error()
        if self._closing:
            raise ClientError(f"the producer of topic {self._route.topic} is closed")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _deliver_all(self) -> None:
        while (batch := self._next_batch()) is not None:
            outcome = self._deliver(batch)
            batch.delivery.settle(outcome)
            with self._changed:
                self._batcher.finish()
                self._acknowledged += outcome.published.count if outcome.published else 0
                self._error = self._error or outcome.error
                self._changed.notify_all()

    def _deliver(self, batch: Batch[Delivery]) -> Outcome:
        try:
            return self._run(self._route.deliver(batch))
        except Exception as error:  # the thread must live on; whoever sends learns of it
            return Outcome(error=error)

    def _next_batch(self) -> Batch[Delivery] | None:
        with self._changed:
            while True:
                wait_s = self._batcher.ready_in_s(self._now_s())
                if wait_s == 0:
                    return self._batcher.take()
                if wait_s is None and self._closing:
                    return None
                self._changed.wait(wait_s)
