"""Messages and batches as users see them, and a consumer's answers: acks, nacks and lease extensions.

A message decodes its value on request, a batch is the rows of one pull as Arrow. Their answers go to the subscription
that delivered them, which collects answers and sends them together. A plain ack is the message's id alone, since there
are many acks; every other answer is an `Answer`.
"""

import asyncio
import base64
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UnsetType

from seaweedq.client.core.wire import PageAnswer, Reference, WireMessage, encode
from seaweedq.client.files import CHUNK_BYTES, AsyncPayload, AtomicFile, Progress, reader
from seaweedq.errors import ClientError
from seaweedq.extras import needs

Verb: TypeAlias = Literal["ack", "nack", "extend"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one message of a lease; to all of the lease if `id` is None. `more` are the request's further
    members: delay_s, reject, reason, attempted, ack_deadline_s."""

    verb: Verb
    id: str | None
    lease: str | None
    more: tuple[tuple[str, Any], ...] = ()


Item: TypeAlias = str | Answer


@dataclass(frozen=True, slots=True)
class Origin:
    """The pull that messages came with: the name of its lease, and where their answers go."""

    answer: Callable[[Item], None]
    lease: str | None = None


def _not_delivered(item: Item) -> None:
    id = item if isinstance(item, str) else item.id
    raise ClientError(
        f"message {id} cannot be acked, because it was fetched from a segment, and not delivered by a subscription",
        id=id,
    )


FETCHED = Origin(_not_delivered)


def nack_of(
    id: str | None, lease: str | None, delay_s: float | None = None, reject: bool = False, reason: str | None = None
) -> Answer:
    """Returns the nack of a message, or of a lease. Members that are None are left out."""
    more = {"delay_s": delay_s, "reject": reject or None, "reason": reason}
    return Answer("nack", id, lease, tuple((name, value) for name, value in more.items() if value is not None))


def return_of(id: str | None, lease: str | None) -> Answer:
    """Returns the nack of a message, or of a lease, that nobody has tried to handle: the delivery does not count."""
    return Answer("nack", id, lease, (("attempted", False),))


def extension_of(id: str | None, lease: str | None, ack_deadline_s: float | None) -> Answer:
    """Returns the extension of a message's lease, or of a whole lease; None is the subscription's deadline."""
    return Answer("extend", id, lease, () if ack_deadline_s is None else (("ack_deadline_s", ack_deadline_s),))


def bodies(items: Iterable[Item], consumer: str) -> Iterator[tuple[Verb, dict[str, Any]]]:
    """Yields the requests that say all of this: one for the plain acks, one for each other kind of answer."""
    items = list(items)
    if acks := [item for item in items if isinstance(item, str)]:
        yield "ack", {"ids": acks, "consumer": consumer}
    others = [item for item in items if isinstance(item, Answer)]
    for (verb, lease, more, whole), group in groupby(others, lambda one: (one.verb, one.lease, one.more, not one.id)):
        about = {} if whole else {"ids": [one.id for one in group]}
        yield verb, {**about, "consumer": consumer, **({"lease": lease} if lease else {}), **dict(more)}


SHOWN = 80  # bytes of a value that a repr shows


class BaseMessage:
    """A message without its payload. Read-only, except for acks, nacks and extensions."""

    __slots__ = ("_origin", "_wire")

    def __init__(self, wire: WireMessage, origin: Origin) -> None:
        self._wire, self._origin = wire, origin

    @property
    def id(self) -> str:
        """Returns `{segment}-{offset}`, unique in the topic."""
        return self._wire.id

    @property
    def key(self) -> str | None:
        """Returns the key, or None if there is no key."""
        return self._wire.key

    @property
    def value(self) -> Any:
        """Returns the value: decoded JSON, the object of a typed topic's fields, or the bytes of a `bytes` topic.

        None if there is a `reference`: only `open` and `download` fetch its payload.
        """
        value = self._wire.value
        if self._wire.reference:
            return None
        return self.raw if isinstance(value, UnsetType) else msgspec.json.decode(value)

    @property
    def raw(self) -> bytes:
        """Returns the value as stored: its JSON text, or the bytes of a `bytes` topic. Empty if there is a
        `reference`."""
        wire = self._wire
        if wire.reference:
            return b""
        if not isinstance(wire.value, UnsetType):
            return bytes(wire.value)
        return base64.b64decode(wire.value_base64) if isinstance(wire.value_base64, str) else b""

    @property
    def json(self) -> bytes:
        """Returns the whole message as the broker sent it, as one line of JSON."""
        return encode(self._wire)

    @property
    def headers(self) -> dict[str, str]:
        """Returns the publisher's headers, empty if there are none."""
        return self._wire.headers or {}

    @property
    def timestamp(self) -> datetime:
        """Returns the publisher's timestamp, or the broker's if the publisher gave none; UTC."""
        return self._wire.timestamp

    @property
    def segment(self) -> int:
        """Returns the id of the message's segment."""
        return self._wire.segment

    @property
    def offset(self) -> int:
        """Returns the message's offset in the segment, from 0."""
        return self._wire.offset

    @property
    def attempt(self) -> int:
        """Returns how often the message was delivered to the subscription, including this delivery; 1 for a fetched
        message."""
        attempt = self._wire.attempt
        return 1 if isinstance(attempt, UnsetType) else attempt

    @property
    def reference(self) -> Reference | None:
        """Returns the payload's `uri`, `size`, `sha256`, `content_type` and `url` if the message was published by
        reference, otherwise None."""
        return self._wire.reference or None

    def ack(self) -> None:
        """Acks the message, so that it is never redelivered. Returns immediately: the client sends acks in batches in
        the background.

        Raises ClientError for a message that was fetched.
        """
        self._origin.answer(self._wire.id)

    def nack(self, delay_s: float | None = None, reject: bool = False, reason: str | None = None) -> None:
        """Returns the message to the subscription. The message is redelivered after `delay_s` seconds (0 to 43,200;
        None: the subscription's backoff). With `reject`, the message goes to the dead-letter topic instead, with a
        `reason` of at most 255 characters. Returns immediately, as `ack` does; the subscription's iterator raises
        InvalidRequest, NoDeadLetters later.

        Raises ClientError for a message that was fetched.
        """
        self._origin.answer(nack_of(self._wire.id, self._origin.lease, delay_s, reject, reason))

    def extend(self, ack_deadline_s: float | None = None) -> None:
        """Extends the message's lease, so that it ends `ack_deadline_s` seconds from now (None: the subscription's
        deadline). Returns immediately, as `ack` does; the subscription's iterator raises InvalidRequest later.

        Raises ClientError for a message that was fetched.
        """
        self._origin.answer(extension_of(self._wire.id, self._origin.lease, ack_deadline_s))

    def __repr__(self) -> str:
        what = repr(self.reference) if self.reference else f"value={self._value_repr()}"
        return f"{type(self).__name__}(id={self.id!r}, key={self.key!r}, {what})"

    def _value_repr(self) -> str:
        """Returns the value as Python writes it; a long one as the beginning of its text."""
        raw = self.raw
        if len(raw) <= SHOWN:
            return repr(self.value)
        is_text = not isinstance(self._wire.value, UnsetType)
        beginning = raw[:SHOWN].decode(errors="replace") if is_text else repr(raw[:SHOWN])
        return f"{beginning}... ({len(raw):,} bytes)"


class Message(BaseMessage):
    """A message. Read-only, except for acks, nacks and extensions."""

    __slots__ = ("_chunks",)

    def __init__(self, wire: WireMessage, chunks: Callable[[WireMessage], Iterator[bytes]], origin: Origin) -> None:
        super().__init__(wire, origin)
        self._chunks = chunks

    def open(self) -> BinaryIO:
        """Opens the payload for reading once, from the beginning. Without a `reference`, the payload is the value's own
        bytes.

        Reads from the store, or through a broker if that fails, and resumes an interrupted read. The last bytes are
        returned only if the digest of the whole payload matches. Reading raises Damaged, PayloadNotFound,
        ConnectionFailed. Use it in a `with`.
        """
        return reader(self._chunks(self._wire)) if self._wire.reference else io.BytesIO(self.raw)

    def download(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the payload (or the value's own bytes) to a file, which appears only after the digest is checked.

        Calls `progress(bytes, total)` repeatedly. Raises the errors of reading, and OSError; after an error there is no
        file."""
        destination = AtomicFile(path, self._wire.reference.size if self._wire.reference else len(self.raw), progress)
        try:
            with self.open() as file:
                while data := file.read(CHUNK_BYTES):
                    destination.write(data)
            destination.commit()
        finally:
            destination.discard()


class AsyncMessage(BaseMessage):
    """A message, for an event loop. Read-only, except for acks, nacks and extensions."""

    __slots__ = ("_chunks",)

    def __init__(
        self, wire: WireMessage, chunks: Callable[[WireMessage], AsyncIterator[bytes]], origin: Origin
    ) -> None:
        super().__init__(wire, origin)
        self._chunks = chunks

    def open(self) -> AsyncPayload:
        """Opens the payload for reading once, from the beginning. Without a `reference`, the payload is the value's own
        bytes.

        Reads from the store, or through a broker if that fails, and resumes an interrupted read. The last bytes are
        returned only if the digest of the whole payload matches. Reading raises Damaged, PayloadNotFound,
        ConnectionFailed. Use it in an `async with`.
        """
        return AsyncPayload(self._chunks(self._wire) if self._wire.reference else _alone(self.raw))

    async def download(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the payload (or the value's own bytes) to a file, which appears only after the digest is checked.

        Calls `progress(bytes, total)` repeatedly. Raises the errors of reading, and OSError; after an error there is no
        file."""
        size = self._wire.reference.size if self._wire.reference else len(self.raw)
        destination = await asyncio.to_thread(AtomicFile, path, size, progress)
        try:
            async with self.open() as payload:
                async for data in payload:
                    await asyncio.to_thread(destination.write, data)
            await asyncio.to_thread(destination.commit)
        finally:
            destination.discard()


async def _alone(data: bytes) -> AsyncIterator[bytes]:
    yield data


M = TypeVar("M", bound=BaseMessage)
Make = Callable[[WireMessage, Origin], M]


class Page(Generic[M]):
    """The answer to a fetch: the messages, and the offset to continue from."""

    __slots__ = ("messages", "next_offset", "sealed", "successors")

    def __init__(self, answer: PageAnswer, message: Make[M]) -> None:
        self.messages = [message(wire, FETCHED) for wire in answer.messages]
        self.next_offset = answer.next_offset
        self.sealed = answer.sealed
        self.successors = answer.successors


if TYPE_CHECKING:
    import pyarrow as pa


class Batch:
    """The rows of one pull, under one lease."""

    __slots__ = ("_origin", "_stream", "_table")

    def __init__(self, stream: bytes, origin: Origin) -> None:
        self._stream, self._origin = stream, origin
        self._table: pa.Table | None = None

    @property
    def lease(self) -> str:
        """Returns the name of the batch's lease."""
        return self._origin.lease or ""

    @property
    def table(self) -> "pa.Table":
        """Returns the rows: the columns of the topic's files, `segment` (int32), `_offset` (int64), and `_attempt`
        (int32), which counts the deliveries of a row. The table is built on first use, without copying the columns."""
        if self._table is None:
            with needs("arrow", "a batch's table"):
                import pyarrow as pa

            self._table = pa.ipc.open_stream(self._stream).read_all()
        return self._table

    def ack(self) -> None:
        """Acks all rows. Returns immediately: the ack is sent in the background."""
        self._origin.answer(Answer("ack", None, self._origin.lease))

    def nack(self, delay_s: float | None = None, reject: bool = False, reason: str | None = None) -> None:
        """Returns all rows to the subscription. The rows are redelivered after `delay_s` seconds (0 to 43,200; None:
        the subscription's backoff). With `reject`, the rows go to the dead-letter topic instead, with a `reason` of at
        most 255 characters. Returns immediately, as `ack` does; the iteration raises InvalidRequest, NoDeadLetters
        later."""
        self._origin.answer(nack_of(None, self._origin.lease, delay_s, reject, reason))

    def extend(self, ack_deadline_s: float | None = None) -> None:
        """Extends the lease of all rows, so that it ends `ack_deadline_s` seconds from now (None: the subscription's
        deadline). Returns immediately, as `ack` does; the iteration raises InvalidRequest later."""
        self._origin.answer(extension_of(None, self._origin.lease, ack_deadline_s))

    def __repr__(self) -> str:
        rows = "" if self._table is None else f", rows={self._table.num_rows}"
        return f"Batch(lease={self.lease!r}, bytes={len(self._stream)}{rows})"


AsyncBatch: TypeAlias = Batch  # nothing that a batch does waits
