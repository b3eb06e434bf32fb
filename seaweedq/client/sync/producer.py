"""The sync producer: threads send the messages that `send` collects, other threads upload a few payloads at a time in
message order, and receipts are like futures."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import msgspec

from seaweedq.client.core.batching import MOST_BYTES, Limits, ProducerBatch, SentLine, row_of
from seaweedq.client.core.delivery import MOST_UPLOADS, Outcome, Route, file_job, receipt_repr
from seaweedq.client.core.effects import Steps
from seaweedq.client.core.segment_map import MapRefresh
from seaweedq.client.core.streams import Partitioner, Placeholder, ProducerStream
from seaweedq.client.core.wire import Published, envelope
from seaweedq.client.files import Progress
from seaweedq.client.sync.stop import Stop, Stopped
from seaweedq.errors import ClientError
from seaweedq.extras import needs


class Delivery:
    """The outcome of one of a producer's requests, which works like a future."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._outcome = Outcome()

    def complete(self, outcome: Outcome) -> None:
        """States the outcome."""
        self._outcome = outcome
        self._done.set()

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Waits for the outcome and returns it. Raises TimeoutError after `timeout_s`."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the outcome of this publish is still unknown after {timeout_s} s")
        return self._outcome

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._done.is_set()

    def outcome_now(self) -> Outcome | None:
        """Returns the outcome, or None if it is not known yet."""
        return self._outcome if self.done() else None

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Returns the error if any of the messages failed, else None. Raises TimeoutError after `timeout_s`."""
        return self.outcome(timeout_s).error

    def result(self, timeout_s: float | None = None) -> Published:
        """Returns the broker's answer; raises the delivery's error. Raises TimeoutError after `timeout_s`."""
        outcome = self.outcome(timeout_s)
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published


class Receipt(msgspec.Struct, gc=False, eq=False):
    """The outcome of one message, which works like a future whose result is the message's id."""

    _delivery: Delivery
    _index: int

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._delivery.done()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Returns the message's error if it failed, else None. Raises TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).error_of(self._index)

    def result(self, timeout_s: float | None = None) -> str:
        """Returns the id `{segment}-{offset}`; raises the message's error. Raises TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).id_of(self._index)

    def __repr__(self) -> str:
        return receipt_repr("Receipt", self._delivery.outcome_now(), self._index)


_LEAVE_S = 2.0


class Uploads:
    """Runs uploads; each upload's thread calls `done` with the result."""

    def __init__(self, run: Callable[..., Any], done: Callable[[Placeholder[Any], SentLine | Exception], None]) -> None:
        self._run, self._done = run, done
        self._lock = threading.Lock()
        self._todo: deque[tuple[Placeholder[Any], Steps[SentLine]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._stop = Stop()

    def add(self, held: Placeholder[Any], steps: Steps[SentLine]) -> None:
        """Queues an upload, which begins when its turn comes."""
        with self._lock:
            self._todo.append((held, steps))
            if len(self._threads) < MOST_UPLOADS:
                thread = threading.Thread(target=self._upload_all, name="uploads", daemon=True)
                self._threads.add(thread)
                thread.start()

    def leave(self) -> None:
        """Stops all uploads, and waits a moment for the brokers to abort them."""
        self._stop.set()
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(_LEAVE_S / len(threads))

    def _upload_all(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._threads.discard(threading.current_thread())
                    return
                held, steps = self._todo.popleft()
            sent: SentLine | Exception
            try:
                self._stop.check()
                sent = self._run(steps, self._stop)
            except Stopped:
                sent = Stopped("the upload was interrupted")
            except Exception as error:  # the thread must live on; the receipt raises the error
                sent = error
            self._done(held, sent)


if TYPE_CHECKING:
    import pyarrow as pa


# So many requests a producer has in flight at most, however many owners there are.
_MOST_THREADS = 32


class Producer:
    """Collects messages and publishes them in batches, each message exactly once. Threads may share a producer.

    If a message fails, its receipt raises the error. After a message has failed, the next `send`, `flush` or `close`
    also raises the error, but only once; the producer can still be used after that. Leaving a `with` flushes. After an
    interrupt (KeyboardInterrupt, SystemExit), a `with` ends immediately instead, and messages that are not acknowledged
    yet may be lost.

    Only the process that created a producer can use it. In a forked process, `send`, `send_file`, `send_table` and
    `flush` raise ClientError, and `close` does nothing, because the parent sends the waiting messages."""

    def __init__(
        self,
        route: Route,
        limits: Limits,
        run: Callable[..., Any],
        on_close: Callable[["Producer"], None],
    ) -> None:
        self._route, self._limits, self._run, self._on_close = route, limits, run, on_close
        self._now_s, self._traces = route.patience.monotonic_s, route.traces
        self._partition: Partitioner[Delivery] = Partitioner(limits, Delivery, route.new_id)
        self._map_refresh = MapRefresh()
        self._lock = lock = threading.RLock()
        self._changed = threading.Condition(lock)  # for those who send, flush and close
        self._work = threading.Condition(lock)  # for the threads
        self._error: Exception | None = None
        self._closing = False
        self._acknowledged = 0
        self._offload, self._most_bytes = route.offload, limits.max_buffer_bytes
        self._last = limits.batch_messages - 1  # index of a full batch's last message
        self._process, self._is_forked = os.getpid(), False
        _producers.add(self)
        self._threads: list[threading.Thread] = []
        self._uploads = Uploads(run, self._uploaded)
        self._start_threads()
        atexit.register(self.close)

    def send(
        self,
        value: Any,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        timestamp: datetime | str | None = None,
        expires_in_s: float | None = None,
    ) -> Receipt:
        """Adds a message to the buffer, to be sent within `linger_ms`. If the buffer already holds `max_buffer_bytes`,
        waits until it has room.

        `value` is any JSON value, a msgspec.Raw with JSON text, or bytes for a `bytes` topic. Raises TypeError or
        ValueError for an invalid message. If an earlier batch failed, `send` raises that batch's error, and does not
        accept the message.
        """
        if self._is_forked:
            self._check_process()
        if self._traces is not None:
            headers = self._traces.create(self._route.topic, headers)
        offload = self._offload
        if headers is None and timestamp is None and expires_in_s is None:
            row = row_of(value, key, offload.limit_bytes if offload else MOST_BYTES)
            if row is not None:  # in place: a call costs a tenth of all this
                data, is_binary, size = row
                partition = self._partition
                with self._lock:
                    if self._error or self._closing or partition.pending_bytes + size > self._most_bytes:
                        self._wait_for_room(size)
                    delivery, index = partition.add_row(key, data, is_binary, size, self._now_s)
                    if index == 0 or index == self._last:
                        self._work.notify()
                return Receipt(delivery, index)
        line = envelope(value, key, headers, timestamp, expires_in_s)
        if offload and offload.is_large(line):
            return self._hold(key, line, offload.line(line), headers)
        with self._changed:
            self._wait_for_room(len(line))
            delivery, index = self._partition.add_line(key, line, self._now_s(), headers)
            # A thread wakes for a batch's first message and for its last: in between it knows all there is.
            if index in (0, self._last):
                self._work.notify()
        return Receipt(delivery, index)

    def send_file(
        self,
        path: str | os.PathLike[str],
        key: str | None = None,
        headers: dict[str, str] | None = None,
        content_type: str | None = None,
        progress: Progress | None = None,
        timestamp: datetime | str | None = None,
        expires_in_s: float | None = None,
    ) -> Receipt:
        """Publishes a file as a message: the producer uploads the file in the background, and publishes it by
        reference.

        Later messages wait for the upload, so that the order is kept. The file must not change before the upload is
        complete. By default, the suffix of the file's name decides the `content_type`. `progress(bytes, total)` reports
        the upload's progress, from any thread. Raises OSError immediately if the file cannot be read, and otherwise the
        errors of `send`. The receipt raises the errors of the upload, such as UploadMismatch, UploadExpired and
        PayloadTooLarge. If the upload fails, no data of the file is kept."""
        self._check_process()
        if self._traces is not None:
            headers = self._traces.create(self._route.topic, headers)
        job = file_job(path, key, headers, content_type, progress, timestamp, expires_in_s)
        assert self._route.offload is not None
        return self._hold(key, b"", self._route.offload.file(job), headers)

    def _hold(self, key: str | None, line: bytes, steps: Steps[SentLine], headers: dict[str, str] | None) -> Receipt:
        with self._changed:
            self._wait_for_room(len(line))
            held = self._partition.hold(key, line, self._now_s(), headers)
            self._uploads.add(held, steps)
        return Receipt(held.batch.delivery, 0)

    def _uploaded(self, held: Placeholder[Delivery], sent: SentLine | Exception) -> None:
        with self._work:
            held.release(sent, self._now_s())
            self._work.notify()

    def send_table(self, table: "pa.Table | pa.RecordBatch") -> list[Delivery]:
        """Publishes a table's rows, in requests of at most half of `max_request_bytes`. Returns one Delivery for each
        request.

        The table's columns are `value` (or the fields of a typed topic) and, optionally, `_key`, `_timestamp`,
        `_headers` and `_expires`. If the buffer already holds `max_buffer_bytes`, waits until it has room. Raises as
        `send` does.
        """
        with needs("arrow", "send_table"):
            from seaweedq.client.core.arrow_batches import slices

        self._check_process()
        limit_bytes = self._limits.max_request_bytes // 2
        return [one for rows in slices(table, limit_bytes) for one in self._send_rows(rows, limit_bytes)]

    def _send_rows(self, rows: "pa.Table", limit_bytes: int) -> list[Delivery]:
        while True:
            routing = self._partition.routing
            pieces = routing.cut(rows, limit_bytes)
            with self._changed:
                self._wait_for_room(rows.nbytes)
                if routing is self._partition.routing:
                    self._work.notify()
                    return self._partition.add_rows(pieces, self._now_s())

    @property
    def acknowledged(self) -> int:
        """Returns the number of messages that brokers have acknowledged so far."""
        return self._acknowledged

    def flush(self) -> None:
        """Returns once all earlier messages are acknowledged or have failed. Raises the error of a failed batch."""
        self._check_process()
        with self._changed:
            is_answered = self._partition.close_open()
            self._work.notify()
            self._changed.wait_for(is_answered)
            self._raise_error()

    def close(self) -> None:
        """Flushes and closes the producer. Raises the errors of `flush`. Closing a closed producer does nothing."""
        if self._is_forked:
            return
        with self._changed:
            self._closing = True
            self._partition.close_open()
            self._work.notify()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._forget()
        with self._changed:
            self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception) and not self._is_forked:
            return self._abandon()
        try:
            self.close()
        except Exception as failed:  # of a file also an OSError
            if error is None:
                raise
            error.add_note(f"the producer also failed: {failed}")

    def _abandon(self) -> None:
        """Leaves without waiting for brokers, because an interrupt should end the program immediately; the threads are
        not joined."""
        with self._changed:
            self._closing = True
            self._work.notify()
            self._changed.notify_all()
        self._uploads.leave()
        self._forget()

    def _forget(self) -> None:
        atexit.unregister(self.close)
        self._on_close(self)

    def _check_process(self) -> None:
        """Refuses what only the parent's threads could do. It comes before any lock: a thread that held one at the fork
        does not exist here."""
        if self._is_forked:
            raise ClientError(
                f"the producer of topic {self._route.topic} belongs to process {self._process}, from "
                f"which this process, {os.getpid()}, was forked; create a new producer in this process"
            )

    def _wait_for_room(self, size: int) -> None:
        self._changed.wait_for(lambda: self._error or self._closing or self._partition.has_room(size))
        self._raise_error()
        if self._closing:
            raise ClientError(f"the producer of topic {self._route.topic} is closed")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _start_threads(self) -> None:
        """Starts a thread per stream; each thread sends the batches of any stream."""
        while len(self._threads) < min(len(self._partition), _MOST_THREADS):
            thread = threading.Thread(target=self._deliver_all, name=f"producer-{self._route.topic}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _deliver_all(self) -> None:
        while (turn := self._next_turn()) is not None:
            stream, batch = turn
            outcome: Outcome
            try:
                outcome = self._run(self._route.deliver(stream, batch))
            except Exception as error:  # the thread must live on; receipts raise the error
                outcome = Outcome(error=error)
            batch.delivery.complete(outcome)
            with self._changed:
                self._partition.finish(stream, batch)
                if outcome.misrouted or outcome.error or batch.is_unfit:
                    self._map_refresh.invalidate()
                self._acknowledged += outcome.published.count if outcome.published else 0
                self._error = self._error or outcome.error
                self._changed.notify_all()

    def _next_turn(self) -> tuple[ProducerStream[Delivery], ProducerBatch[Delivery]] | None:
        """Waits for the next batch. One thread at a time waits; as it leaves, it wakes another."""
        with self._work:
            while True:
                now_s = self._now_s()
                wait_s = self._partition.ready_in_s(now_s)
                if wait_s == 0:
                    # Not at the end: threads cannot start any more while the program exits.
                    if not self._closing and self._map_refresh.due(now_s):
                        self._map_refresh.begin()
                        name = f"segments-{self._route.topic}"
                        threading.Thread(target=self._follow, name=name, daemon=True).start()
                    turn = self._partition.next_batch(now_s)
                    if self._partition.ready_in_s(now_s) is not None:
                        self._work.notify()
                    return turn
                if self._closing and self._partition.idle:
                    self._work.notify()
                    return None
                self._work.wait(wait_s)

    def _follow(self) -> None:
        try:
            found = self._run(self._route.fetch_map())
        except Exception:  # a map only makes things faster
            found = None
        with self._changed:
            self._map_refresh.end(self._now_s(), seen=found is not None)
            if found and not self._closing:
                seen, rule = found
                self._partition.follow(seen, rule, self._route.given)
                self._start_threads()
                self._work.notify()


# Asking the system for the process's id costs a tenth of a message; this costs a fork a little.
_producers: WeakSet[Producer] = WeakSet()


def _mark_forked() -> None:
    for producer in tuple(_producers):
        producer._is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
