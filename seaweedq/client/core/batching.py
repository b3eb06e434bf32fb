"""The batches of one stream of a producer, with their sequences. Pure: the time is passed in.

Batches are sent in order, one at a time. A batch gets its sequence when it is first sent, and keeps it for all
attempts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from seaweedq.client.core.effects import ARROW, NDJSON
from seaweedq.client.core.rows import END_OF_STREAM, Rows, line_of

D = TypeVar("D")
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """When a batch is full, how long it may wait, and how much a producer buffers.

    `linger_ms` trades latency for larger batches. `batch_bytes` must be below the broker's `max_request_bytes`. `send`
    blocks while messages of more than `max_buffer_bytes` are not acknowledged.
    """

    linger_ms: float = 5
    batch_messages: int = 10_000
    batch_bytes: int = 2 * MIB
    max_buffer_bytes: int = 64 * MIB
    max_request_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for name, least in (("linger_ms", 0), ("batch_messages", 1), ("batch_bytes", 1), ("max_buffer_bytes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.batch_bytes > self.max_request_bytes:
            raise ValueError(
                f"batch_bytes is {self.batch_bytes}; it must be at most max_request_bytes, {self.max_request_bytes}"
            )


@dataclass(slots=True)
class ProducerBatch(Generic[D]):
    """Messages of one request. `delivery` is the shell's object that waits for the outcome.

    Its messages are `lines`, or as long as `rows` is set those rows; they are sent as `content_type`.

    `is_unfit`: a broker takes no such columns, so the topic is not what it was.

    A `held` batch reserves its position: its content comes later, and all later batches wait. By then it may have
    failed, with `error`. `upload_id` is the upload that its content names.
    """

    content_type: str
    delivery: D
    opened_s: float
    lines: list[bytes] = field(default_factory=list)
    rows: Rows | None = None
    is_unfit: bool = False
    size: int = 0
    count: int = 0
    sequence: int = -1
    head: bytes = b""
    held: bool = False
    upload_id: str | None = None
    error: Exception | None = None

    def unroll(self) -> None:
        """Makes lines of its rows."""
        if self.rows is not None:
            self.lines, self.rows, self.content_type = self.rows.lines(), None, NDJSON

    def content(self, lines: list[bytes]) -> bytes:
        """Returns the body of a request with these lines; joined Arrow streams become one stream."""
        if not self.head:
            return lines[0] if len(lines) == 1 else b"\n".join(lines)
        return b"".join(
            (self.head, *(memoryview(each)[len(self.head) : -len(END_OF_STREAM)] for each in lines), END_OF_STREAM)
        )


class Batcher(Generic[D]):
    """Fills batches and releases them. Not thread-safe by itself: the shell locks.

    `accepted` and `finished` count messages; accepted messages finish in order.
    """

    def __init__(self, limits: Limits, new_delivery: Callable[[], D]) -> None:
        self._limits, self._new_delivery = limits, new_delivery
        self._closed: deque[ProducerBatch[D]] = deque()
        self._open: ProducerBatch[D] | None = None
        self._in_flight: ProducerBatch[D] | None = None
        self._next_sequence = 0
        self._released_s = -inf
        self.accepted = self.finished = 0

    def add_line(self, line: bytes, now_s: float) -> tuple[D, int]:
        """Adds a message as a line of JSON. Returns the delivery of its batch, and its index in it."""
        size = len(line) + 1
        batch = self._with_room(size, now_s, None)
        batch.unroll()
        batch.lines.append(line)
        return self._added(batch, size)

    def join_row(self, key: str | None, value: bytes, is_binary: bool, size: int) -> tuple[D, int] | None:
        """Adds a message that is a key and a value alone to the open batch, if that has room for it and such rows. It
        has `size` bytes at most as a line. Returns as `add_line`, None where nothing was added."""
        batch = self._open
        if batch is None or batch.size + size > self._limits.batch_bytes:
            return None
        rows, index = batch.rows, batch.count
        if rows is None or rows.is_binary is not is_binary or index + 1 >= self._limits.batch_messages:
            return None
        rows.keys.append(key)
        rows.values.append(value)
        batch.size += size
        batch.count = index + 1
        self.accepted += 1
        return batch.delivery, index

    def add_row(self, key: str | None, value: bytes, is_binary: bool, size: int, now_s: float) -> tuple[D, int]:
        """Adds such a message in any case. Behind lines, or rows of the other kind, it is a line as well: the batch
        need not end for it."""
        batch = self._with_room(size, now_s, is_binary)
        rows = batch.rows
        if rows is not None and rows.is_binary is is_binary:
            rows.keys.append(key)
            rows.values.append(value)
        else:
            batch.unroll()
            batch.lines.append(line_of(key, value, is_binary))
        return self._added(batch, size)

    def _with_room(self, size: int, now_s: float, is_binary: bool | None) -> ProducerBatch[D]:
        batch = self._open
        if batch is not None and batch.size + size > self._limits.batch_bytes:
            self.close_open()
            batch = None
        if batch is None:
            rows = None if is_binary is None else Rows(is_binary)
            batch = self._open = ProducerBatch(NDJSON, self._new_delivery(), now_s, rows=rows)
        return batch

    def _added(self, batch: ProducerBatch[D], size: int) -> tuple[D, int]:
        batch.size += size
        index = batch.count
        batch.count = index + 1
        self.accepted += 1
        if index + 1 >= self._limits.batch_messages:
            self.close_open()
        return batch.delivery, index

    def add_stream(self, stream: bytes, rows: int, now_s: float, head: bytes = b"") -> D:
        """Adds an Arrow stream after the waiting batches.

        It becomes a batch of its own. With a `head`, the beginning that states its schema, it joins the last waiting
        batch if that has the same head and room.
        """
        self.close_open()
        self.accepted += rows
        last = self._closed[-1] if self._closed else None
        if (
            last
            and head
            and last.head == head
            and last.size + len(stream) <= self._limits.batch_bytes
            and last.count + rows <= self._limits.batch_messages
        ):
            last.lines.append(stream)
            last.size += len(stream)
            last.count += rows
            return last.delivery
        batch = ProducerBatch(ARROW, self._new_delivery(), now_s, [stream], size=len(stream), count=rows, head=head)
        self._closed.append(batch)
        return batch.delivery

    def hold(self, size: int, now_s: float) -> ProducerBatch[D]:
        """Reserves the position of a message of which `size` bytes are buffered: a batch of its own, to be released."""
        self.close_open()
        self.accepted += 1
        batch = ProducerBatch(NDJSON, self._new_delivery(), now_s, size=size, count=1, held=True)
        self._closed.append(batch)
        return batch

    def release(self, batch: ProducerBatch[D], now_s: float) -> None:
        """Lets a held batch be sent when it is its turn. The timeout of this batch, and of those that waited for it,
        starts now."""
        batch.held = False
        self._released_s = now_s

    def close_open(self) -> None:
        """Closes the open batch, so that it does not wait for more messages."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def ready_in_s(self, now_s: float) -> float | None:
        """Returns the seconds until a batch may be sent: 0 for now, None while there is none or one is in flight."""
        if self._in_flight is not None:
            return None
        if self._closed:
            return None if self._closed[0].held else 0.0
        if self._open is None:
            return None
        return max(0.0, self._open.opened_s + self._limits.linger_ms / 1000 - now_s)

    def next_batch(self) -> ProducerBatch[D]:
        """Returns the batch whose turn it is, with its sequence. Call it only when `ready_in_s` is 0."""
        if not self._closed:
            self.close_open()
        batch = self._in_flight = self._closed.popleft()
        batch.opened_s = max(batch.opened_s, self._released_s)
        batch.sequence = self._next_sequence
        self._next_sequence += batch.count
        return batch

    def finish(self) -> None:
        """Records that the batch in flight succeeded or failed: the next may be sent."""
        assert self._in_flight is not None
        self.finished += self._in_flight.count
        self._in_flight = None
