"""The requests that brokers send one another below /internal, and the bounds of their fields.

Fields keep their order: messages travel as arrays. A broker trusts every broker that has the secret, but refuses values
that would break it: a number that no column holds, a name that cannot be part of a key.

A forward brings rows of some segments from the broker that got the request to their owner: the headers of its frames as
msgpack, their length in eight bytes ahead, and then the rows of each as Arrow IPC without the schema. The owner answers
with one outcome a frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from seaweedq.access.limits import Accounts, Wish
from seaweedq.access.rights import NEVER_US
from seaweedq.coordination.keys import ID_BOUND
from seaweedq.errors import SeaweedqError, Unavailable, UnreadableBody, by_slug
from seaweedq.segments.entry import NAME
from seaweedq.segments.frames import padded, padding
from seaweedq.segments.layout import OPTIONAL_FIELDS, Layout
from seaweedq.segments.producers import Sequences

MAX = 2**63 - 1
TopicName = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
ProducerName = Annotated[
    str, Meta(pattern=rf"\A~?{NAME}(~{NAME})?\Z")
]  # the second one is of a principal, the first that principal's uid
Id = Annotated[int, Meta(ge=0, lt=ID_BOUND)]
Count = Annotated[int, Meta(ge=0, le=MAX)]
Time = Annotated[int, Meta(ge=-MAX, le=MAX)]
Part = Annotated[float, Meta(ge=0, le=1e18)]  # of a limit
Seconds = Annotated[float, Meta(ge=0, le=3600)]
_LENGTH = 8


class TopicCall(msgspec.Struct, array_like=True):
    """Names a topic to another broker. `sizes` asks for the bytes of its segments, `flush` for a flush before."""

    topic: TopicName
    incarnation: Id
    sizes: bool = False
    flush: bool = False


class EndsCall(msgspec.Struct, array_like=True):
    """Asks for the ends of a broker's segments of a topic, as soon as they differ from `known` or `wait_s` has
    passed."""

    topic: TopicName
    incarnation: Id
    known: dict[int, int]
    wait_s: Seconds


class SegmentCall(msgspec.Struct, array_like=True):
    """Asks about one segment: rows or bytes from `offset` on, or the first offset whose time is `timestamp_us`."""

    topic: TopicName
    incarnation: Id
    segment: Id
    offset: Count = 0
    limit: Count = 0
    max_bytes: Count = 0
    timestamp_us: Time = 0


class SentRows(msgspec.Struct, array_like=True):
    """Rows between brokers: the first offset, the optional columns (layout.mask_of), Arrow IPC without the schema."""

    first: int
    columns: int
    payload: bytes


class SegmentRows(msgspec.Struct, array_like=True):
    """The answer to a read: rows, all of one version of the schema, and the end of the segment."""

    end: int
    pieces: list[SentRows]
    schema_id: int = 0

    def rows(self, layout: Layout) -> list[tuple[int, pa.RecordBatch]]:
        """Returns the rows as Arrow batches, each with its first offset. `layout` is that of their version."""
        return [
            (one.first, pa.ipc.read_record_batch(pa.py_buffer(one.payload), layout.rows(one.columns)))
            for one in self.pieces
        ]


class HistoryCall(msgspec.Struct, array_like=True):
    """Asks the leader for a topic's history from `since_us` to `until_us`, in at most so many cells."""

    topic: TopicName
    incarnation: Id
    since_us: Time
    until_us: Time
    cells: Count


class MarkCall(msgspec.Struct, array_like=True):
    """Asks the owner of these segments, if they are idle, to give each an entry without rows."""

    topic: TopicName
    incarnation: Id
    segments: tuple[Id, ...]


class GiveCall(msgspec.Struct, array_like=True):
    """Asks the owner of a segment to give it to the broker `target`."""

    topic: TopicName
    incarnation: Id
    segment: Id
    target: str


class StreamCall(msgspec.Struct, array_like=True):
    """Asks the dispatcher of a subscription for the messages of a stream behind a place
    (broker/subscriptions/leases), or tells it that a connection has left. `broker` carries the connection."""

    topic: TopicName
    incarnation: Id
    subscription: TopicName
    stream: str
    connection: str
    consumer: str
    serial: Count = 0
    segment: Time = -1
    offset: Time = -1
    resumed: bool = False
    max_in_flight: Count = 0
    max_messages: Count = 0
    max_bytes: Count = 0
    wait_s: Seconds = 0.0
    frees: bool = False
    links_until_us: Time = NEVER_US  # when the token of the stream ends, and so do links in its messages
    broker: str = ""


class Waits(msgspec.Struct, array_like=True):
    """The pulls that queue at a broker for one subscription, and their consumers; "" stands for those without a
    name."""

    topic: TopicName
    incarnation: Id
    subscription: TopicName
    pulls: Count
    consumers: list[str]


class WaitsCall(msgspec.Struct, array_like=True):
    """Tells the dispatcher of some subscriptions the pulls that queue for them at a broker
    (broker/subscriptions/subscribing)."""

    broker: str
    waits: list[Waits]


class StreamAnswer(msgspec.Struct, array_like=True):
    """Messages of a stream: the rows of a batch, encoded (broker/streams/streaming), and their lease; both
    are empty if the wait has ended."""

    lease: str
    rows: bytes


class RecoverCall(msgspec.Struct, array_like=True):
    """Asks a broker to recover the journal of `broker`, which is gone."""

    broker: str


class HeartbeatCall(msgspec.Struct, array_like=True):
    """Asks which broker answers here. A broker that lives on holds the answer for `hold_s`."""

    hold_s: Seconds = 0.0


class Heartbeat(msgspec.Struct, array_like=True):
    """The id of the broker that answers, whether it is about to stop, so that it may refuse connections soon, and its
    wall clock."""

    broker: str
    leaving: bool
    now_us: int


class BrokerStatus(msgspec.Struct, array_like=True):
    """The bytes that a broker holds in memory and in its journal; its budget, and the part of the budget that is held;
    the messages and bytes that came in a second, over 10 s; the age of its oldest row that is in no file yet; the
    number of brokers that the load needs, 0 unless this one leads and has decided; and the broker that should stop if
    one has to, empty unless this one leads and others run."""

    tail_bytes: int
    unreleased_journal_bytes: int
    budget_bytes: int
    held_bytes: int
    messages_per_s: float
    bytes_per_s: float
    oldest_tail_s: float
    brokers_wanted: int
    first_to_stop: str


class UseReport(msgspec.Struct, array_like=True):
    """A broker's report, by its number, of its use of limits: whose a limit is, its name, the part of it that was used
    a second, and whether something was refused."""

    number: Count
    uses: list[Wish]

    @staticmethod
    def from_accounts(accounts: Accounts, now_s: float) -> "UseReport":
        """Returns the use since the report before."""
        uses = accounts.report(now_s)
        return UseReport(accounts.number, uses)


class ShareCall(msgspec.Struct, array_like=True):
    """Tells a broker its shares of limits, by the report that it has given under this number."""

    number: Count
    shares: list[tuple[str, str, Part]]


class ErrorMessage(msgspec.Struct, array_like=True):
    """An error between brokers. `slugs` are those of its class and of the classes above, the nearest first: a broker of
    an earlier version raises the first class that it knows."""

    slugs: tuple[str, ...]
    detail: str
    fields: dict[str, Any]
    inside: str = ""

    @staticmethod
    def from_error(error: SeaweedqError) -> "ErrorMessage":
        """Returns the message for an error."""
        slugs = [kind.slug for kind in type(error).__mro__ if issubclass(kind, SeaweedqError)]
        return ErrorMessage(tuple(dict.fromkeys(slugs)), error.detail, dict(error.fields), error.inside)

    def error(self) -> SeaweedqError:
        """Returns the error of the message."""
        known = by_slug()
        kind = next((known[slug] for slug in self.slugs if slug in known), Unavailable)
        return kind(self.detail, inside=self.inside, **self.fields)


class ForwardHeader(msgspec.Struct, array_like=True, frozen=True):
    """The rows' segment, and where the part of its range begins; their optional columns (layout.mask_of); the producer
    and sequences that make a repeat known; the size of the rows; the highest revision of coordination that the sender
    had seen; the version of the rows' schema; and whether only a repeat is to be answered."""

    topic: TopicName
    incarnation: Id
    segment: Id
    part: Id
    columns: Annotated[int, msgspec.Meta(ge=0, lt=1 << len(OPTIONAL_FIELDS))]
    producer: ProducerName
    low: Count
    high: Count
    length: Count
    seen: Count = 0
    schema_id: Count = 0
    only_repeats: bool = False


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """The segment that has the rows, which may be a predecessor of the one that they were sent to; the first row's
    offset there, and whether they were there already. Or the error."""

    segment: int = -1
    first_offset: int = -1
    duplicate: bool = False
    trouble: ErrorMessage | None = None


@dataclass(frozen=True, slots=True)
class ForwardFrame:
    """A header and its rows, serialised."""

    header: ForwardHeader
    payload: pa.Buffer | memoryview

    @property
    def sequences(self) -> Sequences:
        """The producer and sequences, which make a repeat known."""
        header = self.header
        return Sequences(header.producer, header.low, header.high, header.only_repeats)

    def rows(self, layout: Layout) -> pa.RecordBatch:
        """Reads and checks the rows, without a copy. `layout` is that of their topic and version. Raises
        UnreadableBody."""
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(self.payload), layout.rows(self.header.columns))
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, IndexError, EOFError) as error:
            raise UnreadableBody(f"the rows of a forwarded request cannot be read: {error}") from error
        if not 0 < rows.num_rows <= self.header.high - self.header.low + 1:
            raise UnreadableBody(
                f"a forwarded request with the sequence numbers {self.header.low} to "
                f"{self.header.high} cannot have {rows.num_rows} rows"
            )
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if column.null_count and not field.nullable:
                raise UnreadableBody(
                    f"a forwarded request has null values in column {field.name}, which must not be null"
                )
        return rows


_FORWARD_HEADERS = msgspec.msgpack.Decoder(list[ForwardHeader])


def encode_forward(frames: Sequence[ForwardFrame]) -> bytes:
    """Encodes a forward's body."""
    index = msgspec.msgpack.encode([frame.header for frame in frames])
    buffers: list[Any] = [len(index).to_bytes(_LENGTH, "little"), index, padding(len(index))]
    for frame in frames:
        buffers += [frame.payload, padding(frame.header.length)]
    return b"".join(buffers)


def decode_forward(body: bytes) -> list[ForwardFrame]:
    """Decodes the frames of a forward; they stand on its bytes. Raises UnreadableBody."""
    view = memoryview(body)
    length = int.from_bytes(view[:_LENGTH], "little")
    at = _LENGTH + padded(length)
    try:
        headers = _FORWARD_HEADERS.decode(view[_LENGTH : _LENGTH + length])
    except msgspec.DecodeError as error:
        raise UnreadableBody(f"the body is not a valid forwarded request: {error}") from error
    frames = []
    for header in headers:
        if header.length < 0 or at + header.length > len(view):
            raise UnreadableBody("the forwarded request is cut off")
        frames.append(ForwardFrame(header, view[at : at + header.length]))
        at += padded(header.length)
    return frames
