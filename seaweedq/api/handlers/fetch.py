"""Fetches of a segment's messages from an offset, as JSON or Arrow. Also a message's payload, streamed through a broker
for clients that cannot reach the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Self

import msgspec
import pyarrow as pa
from fastapi import Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.access.rates import waiting
from seaweedq.api.connections.answers import StoredObject, send_object
from seaweedq.api.connections.memory import UnreadAnswers
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.parameters import (
    MAX_NUMBER,
    TEXTS,
    PathSegment,
    PathTopic,
    RequestDep,
    choice,
    integer,
    query,
    seconds,
    whole_number,
)
from seaweedq.api.proxy import Proxy
from seaweedq.api.request import Receive, Request, Scope, Send, send
from seaweedq.api.routes import SEGMENT, Router
from seaweedq.api.services import Parts, given
from seaweedq.broker.log import OpenSegment, Pieces, fitting
from seaweedq.broker.read import MAX_BYTES, ClusterTime, Fetcher, OwnerFinder, Target
from seaweedq.broker.topics import Catalog, Topic, check_at_end
from seaweedq.broker.uploads import PIECE_BYTES, Payloads
from seaweedq.coordination.records import SegmentRecord
from seaweedq.errors import BelowRetention, ChainDamaged, PayloadNotFound, SegmentNotFound
from seaweedq.rows.bodies import ARROW, JSON
from seaweedq.rows.message_json import encode_messages
from seaweedq.segments.trace_headers import contexts_of
from seaweedq.traces import Traces

router = Router("read")
_FRAME_BYTES = 1024  # of a JSON answer, around its messages: at most 32 successors
_END_BYTES = 8  # of an Arrow stream
MAX_LIMIT = 10_000
MAX_WAIT_S = 30.0
EXPIRED = ("skip", "keep")
EXAMPLE = {
    "id": "0-17",
    "key": "UA",
    "value": {"carrier": "UA", "delay": 12},
    "headers": {},
    "timestamp": "2026-01-31T12:00:00.000000Z",
    "segment": 0,
    "offset": 17,
}


class MessageReference(Struct):
    """A payload in the store. `url` downloads the payload without credentials, and is valid for `upload_url_s`. `url`
    is absent if the broker cannot make one."""

    uri: str
    size: int
    content_type: str
    sha256: str
    url: str | UnsetType = UNSET


class Message(Struct, omit_defaults=True):
    """A message as consumers receive it. JSON and typed topics have `value`; bytes topics have `value_base64`.

    A message with a `reference` has a null value. In typed topics, decimals are strings, binary values are base64, and
    floats that are not finite are null.
    """

    id: str
    key: str | None
    headers: dict[str, str]
    timestamp: str
    segment: int
    offset: int
    value: Any = None
    value_base64: str | UnsetType | None = UNSET
    reference: MessageReference | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class FetchAnswer(Struct):
    """To continue, fetch from `next_offset`. Offsets may have gaps, because expired messages are left out unless the
    request has `expired=keep`.

    A `sealed` segment receives no more messages. At its end, continue with each of its `successors` from offset 0.
    """

    messages: list[Message]
    next_offset: int
    sealed: bool
    successors: list[int]


@dataclass(frozen=True)
class FetchServices:
    """The services of this route."""

    catalog: Catalog
    finder: OwnerFinder
    proxy: Proxy
    fetcher: Fetcher
    payloads: Payloads
    time: ClusterTime
    unread: UnreadAnswers
    traces: Traces | None

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, reading = parts.broker, parts.broker.reading
        read = reading.finder, parts.proxy, reading.fetcher, broker.uploading.payloads
        return cls(broker.catalog, *read, reading.readables.time, parts.reader.unread, broker.process.traces)


FetchDep = Annotated[FetchServices, given(FetchServices)]
_WAIT = query(
    "wait_s",
    "time to wait for the first message, in seconds or with a unit (500ms)",
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}, TEXTS["s"]], "default": 0},
    partial(seconds, what="wait_s", high=MAX_WAIT_S),
    "0",
    example=0.1,
)
_EXPIRED = query(
    "expired",
    "`keep` also returns expired messages",
    {"type": "string", "enum": list(EXPIRED), "default": "skip"},
    partial(choice, what="expired", allowed=EXPIRED),
    "skip",
)


@router.route(
    "GET",
    f"{SEGMENT}/messages",
    Action.READ,
    "fetchMessages",
    "Fetch a segment's messages from an offset",
    lasts=True,
    timed="fetch",
    answers={200: {JSON: {"schema": FetchAnswer}, ARROW: {"schema": {"type": "string", "format": "binary"}}}},
    refuses=(400, 404, 409, 416, BelowRetention),
    shows={"messages": [EXAMPLE], "next_offset": 18, "sealed": False, "successors": []},
)
async def fetch(
    services: FetchDep,
    request: RequestDep,
    topic: PathTopic,
    segment: PathSegment,
    offset: Annotated[int, integer("offset", 0, MAX_NUMBER, "first offset to return; may be the segment's end", 0)],
    limit: Annotated[int, integer("limit", 1, MAX_LIMIT, "maximum number of messages", 1000)],
    wait_s: Annotated[float, _WAIT],
    expired: Annotated[str, _EXPIRED],
) -> Response:
    """Returns a segment's messages, starting at `offset`, whether or not the messages are in Parquet files yet. The
    broker keeps no state about the reader.

    To continue, fetch from `next_offset`. A page ends early at the segment's end, at 8 MiB, or after 1 s of reading. A
    waiting request ends when a message arrives or the segment is sealed.

    A `sealed` segment receives no more messages, because it was split, merged or rolled. You have read a sealed segment
    to its end when `next_offset` equals the `offset` in your request; a page without messages can also mean that its
    messages have expired. To read a topic in key order, start with the segments that have no `predecessors`. Start each
    successor at offset 0 once you have read all its predecessors to their ends.

    410 `below-retention` means that retention has deleted messages at this offset; the segment now begins at
    `start_offset`.

    With `Accept: application/vnd.apache.arrow.stream`, the answer is an Arrow stream with the columns of the Parquet
    files. The headers `next-offset`, `sealed` and `successors` (such as `4,5`) carry the other fields.
    """
    found = await services.catalog.require(topic)
    work = _answered(services, request, _FetchRequest(found, segment, offset, limit, wait_s, expired == "keep"))
    if services.traces is None:
        return await work
    contexts = (request.header(b"traceparent") or "",)
    return await services.traces.around(work, "fetch", topic, contexts, "SERVER", segment=str(segment))


@dataclass(frozen=True)
class _FetchRequest:
    """The messages that a request asks for."""

    topic: Topic
    segment: int
    offset: int
    limit: int
    wait_s: float
    keeps_expired: bool


async def _answered(services: FetchServices, request: Request, asked: _FetchRequest) -> Response:
    """Returns the answer, also of a segment that retention has removed."""
    try:
        await services.catalog.require_segment(asked.topic, asked.segment)
        if not asked.wait_s:
            return await _fetched(services, request, asked)
        with waiting(request):
            return await request.while_there(_fetched(services, request, asked))
    except SegmentNotFound:
        tombstone = await services.catalog.tombstone(asked.topic, asked.segment)
        check_at_end(asked.segment, tombstone.end_offset, asked.offset)
        return _removed(request, asked, tombstone.successors)


async def _fetched(services: FetchServices, request: Request, asked: _FetchRequest) -> Response:
    topic, number = asked.topic, asked.segment

    async def here(target: Target) -> Response | None:
        opened, pieces = await services.fetcher.fetch(topic, number, asked.offset, asked.limit, target.wait_s)
        made = services.unread.made(
            min(MAX_BYTES, sum(rows.nbytes for _, rows in pieces)),
            partial(_maker, services, request, asked, opened, pieces),
        )
        if services.traces is None:
            return await made
        rows = [rows for _, rows in pieces]
        about = {"segment": str(number), "count": sum(one.num_rows for one in rows)}
        return await services.traces.around(made, "deliver", topic.name, contexts_of(rows), **about)

    async def there(target: Target) -> Response:
        relayed = await services.proxy.relay(request, target)
        return Response(bytes(relayed.body), relayed.status, dict(relayed.headers))

    search = services.finder.search(topic, number, services.proxy.search_request(request, asked.wait_s))
    answer = await search.answer(here, there)
    if answer is None:  # raised within the search, the error would be taken for the owner's, and tried again
        raise services.unread.refusal()
    return answer


async def _maker(
    services: FetchServices, request: Request, asked: _FetchRequest, opened: OpenSegment, pieces: Pieces
) -> Callable[[], Response]:
    """Returns a function that encodes the answer from immutable data."""
    next_offset = pieces[-1][0] + pieces[-1][1].num_rows if pieces else asked.offset
    alive = pieces if asked.keeps_expired else await services.time.unexpired(pieces)
    if request.asks_for(ARROW):
        record = services.catalog.segment(asked.topic, asked.segment).record
        return partial(_arrow_answer, opened, record, next_offset, alive)
    links = await services.payloads.links_of(asked.topic, [rows for _, rows in alive], request.caller.expires_us)
    record = services.catalog.segment(asked.topic, asked.segment).record
    return partial(_answer, opened, record, next_offset, alive, links)


def _arrow_answer(segment: OpenSegment, record: SegmentRecord, next_offset: int, alive: Pieces) -> Response:
    content, left_out = arrow_stream(segment, alive, MAX_BYTES)
    return _arrow(content, next_offset if left_out is None else left_out, _successors(record))


def _answer(
    segment: OpenSegment, record: SegmentRecord, next_offset: int, alive: Pieces, links: Mapping[str, str]
) -> Response:
    messages, left_out = encode_messages(alive, segment.id, segment.layout, links, MAX_BYTES - _FRAME_BYTES)
    return _json(messages, next_offset if left_out is None else left_out, _successors(record))


def _removed(request: Request, asked: _FetchRequest, successors: tuple[int, ...]) -> Response:
    """Returns the answer at the end of a segment that retention has removed, which is that of a sealed segment."""
    if not request.asks_for(ARROW):
        return _json(b"[]", asked.offset, successors)
    sink, schema = pa.BufferOutputStream(), asked.topic.layout.table
    with pa.ipc.new_stream(sink, schema):
        pass
    return _arrow(memoryview(sink.getvalue()), asked.offset, successors)


def _successors(record: SegmentRecord) -> tuple[int, ...] | None:
    return record.successors if record.state == "sealed" else None


def _arrow(content: memoryview, next_offset: int, successors: tuple[int, ...] | None) -> Response:
    headers = {"Next-Offset": str(next_offset)}
    if successors is not None:
        headers |= {"Sealed": "true", "Successors": ",".join(map(str, successors))}
    return Response(content, media_type=ARROW, headers=headers)


def _json(messages: bytes, next_offset: int, successors: tuple[int, ...] | None) -> Response:
    content = b'{"messages":%b,"next_offset":%d,"sealed":%b,"successors":%b}' % (
        messages,
        next_offset,
        b"false" if successors is None else b"true",
        msgspec.json.encode(successors or ()),
    )
    return Response(content, media_type="application/json")


def arrow_stream(segment: OpenSegment, pieces: Pieces, max_bytes: int) -> tuple[memoryview, int | None]:
    """Returns rows with all columns, including offsets, as an IPC stream of at most `max_bytes` but at least one row.
    Also returns the offset of the first row that did not fit, or None."""
    sink, layout = pa.BufferOutputStream(), segment.layout
    schema = layout.table
    left, left_out = max_bytes - schema.serialize().size - _END_BYTES, None
    with pa.ipc.new_stream(sink, schema) as writer:
        for at, (first, rows) in enumerate(pieces):
            rows = layout.complete(rows, first)
            fit = fitting(rows, left, 0 if at else 1, pa.ipc.get_record_batch_size)
            if fit:
                writer.write_batch(rows.slice(0, fit))
            if fit < rows.num_rows:
                left_out = first + fit
                break
            left -= pa.ipc.get_record_batch_size(rows)
    return memoryview(sink.getvalue()), left_out


OCTETS = "application/octet-stream"

_BYTES: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
_RANGE = {
    "name": "Range",
    "in": "header",
    "description": "one range of bytes",
    "schema": {"type": "string"},
    "example": "bytes=0-1023",
}


@dataclass(frozen=True)
class PayloadServices:
    """The services of this route."""

    catalog: Catalog
    payloads: Payloads
    reader: RequestReader

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker.catalog, parts.broker.uploading.payloads, parts.reader)


PayloadDep = Annotated[PayloadServices, given(PayloadServices)]


class _Payload(Response):
    """An answer that is sent chunk by chunk."""

    def __init__(self, stored: StoredObject, reader: RequestReader) -> None:
        super().__init__()
        self._stored, self._reader = stored, reader

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        try:
            with self._reader.unread.streaming(2 * PIECE_BYTES):
                request, stall_s = scope["state"]["request"], self._reader.settings.answer_timeout_s
                answer = await send_object(self._stored, request, out, stall_s)
        except FileNotFoundError:
            raise PayloadNotFound("the payload is no longer in the store") from None
        if answer:
            await send(answer, out)


@router.route(
    "GET HEAD",
    f"{SEGMENT}/messages/{{offset}}/payload",
    Action.READ,
    "getPayload",
    "Get a message's payload",
    lasts=True,
    answers={200: _BYTES, 206: _BYTES},
    refuses=(409, 416, PayloadNotFound),
    parameters=[_RANGE],
)
async def payload(services: PayloadDep, topic: PathTopic, segment: PathSegment, offset: str) -> Response:
    """Returns the payload of a message that was published by reference, or one range of its bytes (206). Any broker can
    answer.

    Use this route if your client cannot reach the store. `HEAD` and `if-range` work; the `etag` is the SHA-256. The
    answer has the content type of the message's reference. `content-disposition` is `attachment`, so that browsers
    download the payload instead of showing it as a page from the broker."""
    catalog = services.catalog
    found = await catalog.require(topic)
    at = whole_number(offset, "offset", 0, MAX_NUMBER)
    await catalog.require_segment(found, segment)
    try:
        name, reference = await services.payloads.find(found, segment, at)
    except ChainDamaged:  # the topic may be going, and its files with it
        await catalog.refresh(topic)
        catalog.check(found)
        raise
    read = partial(services.payloads.pieces, name)
    kind = _content_type(reference.content_type)
    return _Payload(StoredObject(reference.size, reference.sha256, kind, read), services.reader)


def _content_type(stated: str) -> str:
    """Returns the reference's content type if it is valid in a header."""
    return stated if stated and stated.isascii() and stated.isprintable() else OCTETS
